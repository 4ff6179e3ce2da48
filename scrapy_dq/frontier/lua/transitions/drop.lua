-- drop: waiting entries of one partition -> gone, in bounded steps. Their fingerprints stay in `seen`. Leases, failed
-- requests and dead letters do not change. A message of a stream no longer waits for its dropped entries.
-- ARGS     partition, most (drop at most this many entries outside `delayed` and `declined`), apart (`delayed` or
--          `declined`), members (msgpack array: the members of the key *apart* to drop; all belong to this partition),
--          by (the user or program that drops entries, for the journal)
-- RETURNS  OK, how many were dropped, left (1: more entries wait outside `delayed` and `declined`) | ABSENT | MOVING,
--          from>to | WRONG_TYPE, key, actual, expected
-- COST     O(most + members)
-- CRASH    before, after: a repeat drops the rest
-- @include base partition messages journal stopped
local partition, most, apart, members, by = ARGV[1], tonumber(ARGV[2]), ARGV[3], cmsgpack.unpack(ARGV[4]), ARGV[5]
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
local dropped = 0
local function count(of, gone) state[of], dropped = math.max(0, state[of] - gone), dropped + gone end
local function remove(name, members)
  local of = name == 'delayed' and name or 'waiting'
  if not members[1] then return end
  if not may_exist('messages') then return count(of, redis.call('ZREM', key[name], unpack(members))) end
  for _, member in ipairs(members) do
    local removed = redis.call('ZREM', key[name], member)
    local payload = of == name and select(4, read_delayed(member)) or string.sub(member, #partition + MEMBER + 2)
    count(of, removed)
    if removed == 1 then count_message(payload, -1) end
  end
end
remove(apart, members)
while dropped < most do
  local band = redis.call('HGET', key.bands, partition)
  if not band then break end
  local list = list_of(unpack_rank(band), partition)
  local length = redis.call('LLEN', list)
  local size = math.min(most - dropped, length)
  local elements = may_exist('messages') and redis.call('LRANGE', list, 0, size - 1) or {}
  redis.call('LTRIM', list, size, -1)
  count('waiting', size)
  for _, element in ipairs(elements) do count_message(string.sub(element, ELEMENT + 1), -1) end
  if size == length then remove_best_band(partition) end
end
for _, name in ipairs({ 'returned', 'quarantine' }) do
  if dropped < most then
    local rest = redis.call('ZRANGEBYLEX', key[name], '[' .. partition .. '\0', '(' .. partition .. '\1',
      'LIMIT', 0, most - dropped)
    remove(name, rest)
  end
end
classify(partition, 0)
save_state()
if dropped > 0 then note_event('drop', by, dropped, partition) end
return { 'OK', dropped, turns_in(partition) and 1 or 0 }
