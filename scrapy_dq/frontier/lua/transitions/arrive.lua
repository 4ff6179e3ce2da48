-- arrive: what a reshard moves is stored in its new shard; it is still in its old one, too.
-- ARGS     epoch, change, owner (see reshard.lua), from (its old shard), label (backlog, failed: in this order;
--          returned, quarantine, delayed, dead, seen, seeds, admitted, adopted, limits, spent, earliest, blocked, sums;
--          of an import also fingerprints: they become seen now, of whatever kind that is; messages: for home,
--          acknowledged),
--          first (of lists: how many elements of any list have arrived from there before), items (msgpack: elements,
--          members or tokens; of the backlog rank, partition and elements of one list after another; with a time before
--          each: delayed, earliest, blocked, an expiring seen; field and value: dead, limits, spent; the first bucket
--          and the member: a compact seen; done, failed, gone: the sums of a shard that will be no more)
-- RETURNS  OK, how often something has arrived from there | CHANGED (another process, or reshard) | GAP (elements are
--          missing that had arrived: this shard was rolled back) | WRONG_TYPE, key, actual, expected
-- COST     O(items)
-- CRASH    before, after: repeating it changes nothing: elements of lists are counted, all else is a set
local epoch, change, owner, from, label = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local first, items = tonumber(ARGV[6]), cmsgpack.unpack(ARGV[7])
load_sizes()
if not is_owned(epoch, change, owner) then return { 'CHANGED' } end
local function touch(member) touched[string.match(member, '^[^%z]*')] = true end
if label == 'backlog' or label == 'failed' then
  local append, note = appender(from, first)
  if not append then return { 'GAP' } end
  if label == 'failed' then
    state.failed = state.failed + append(key.failed, items)
  else
    for i = 1, #items, 3 do
      local rank, partition = items[i], items[i + 1]
      state.waiting = state.waiting + append(list_of(rank, partition), items[i + 2])
      touched[partition] = true
      note_band(partition, rank)
    end
  end
  note()
elseif label == 'returned' or label == 'quarantine' then
  local scored = {}
  for _, member in ipairs(items) do
    scored[#scored + 1], scored[#scored + 2] = 0, member
    touch(member)
  end
  items = scored
  state.waiting = state.waiting + in_parts('ZADD', key[label], items)
elseif label == 'delayed' then
  state.delayed = state.delayed + in_parts('ZADD', key.delayed, items)
elseif label == 'earliest' or label == 'blocked' then
  polite = true
  in_parts('ZADD', key[label], items)
  for i = 2, #items, 2 do touched[items[i]] = true end
elseif label == 'dead' or label == 'limits' or label == 'spent' then
  if label == 'limits' and items[1] then begin_to_limit() end
  if label == 'spent' then redis.call('HDEL', key.meta, 'spent_on') end -- it may be of a later day (budgets.lua)
  in_parts('HSET', key[label], items)
elseif label == 'sums' then
  if stored_field('reshard:sums ' .. from) == '' then
    redis.call('HSET', key.meta, 'reshard:sums ' .. from, 1)
    state.done, state.failed = state.done + items[1], state.failed + items[2]
    -- What home was told of that shard (notes.lua) is in its sum, and would hide what a new one loses.
    local others = string.gsub(stored_field('gone_elsewhere'), '%f[%d]' .. from .. ':%d+ ', '')
    redis.call('HSET', key.meta, 'gone_elsewhere', others)
    if items[3] > 0 then redis.call('HSET', key.meta, 'gone', string.format('%.0f', state.gone + items[3])) end
  end
elseif label == 'seen' then
  seen().arrive(items)
  tidy_seen()
elseif label == 'fingerprints' then
  for _, fingerprint in ipairs(items) do seen().add(fingerprint) end
  tidy_seen()
elseif label == 'messages' then
  for _, field in ipairs(items) do count_message(of_message(field, ''), 0) end
else
  in_parts('SADD', key[label], items)
end
if touched[CLAIMED] then state.claimed = 1 end
classify_touched(0)
save_state()
return { 'OK', redis.call('HINCRBY', key.meta, 'reshard:got ' .. from, 1) }
