-- convert: a seen set of one kind -> another kind, in bounded steps; no worker may be live.
-- The first step renames `seen` to `converting` and stores e.g. exact>compact as the kind: from then on no worker
-- can join. Each step moves some tokens from `converting` to the new `seen`; the last step stores the new kind.
-- ARGS     to, most, dead_ids (msgpack array of ids of workers that are dead)
-- RETURNS  OK, from, left (0: done) | ABSENT | LIVE, worker_id | UNDER_WAY, from>to (another conversion has started)
--          | ONE_WAY, from (this kind cannot be converted) | WRONG_TYPE, key, actual, expected
-- COST     O(most); 5 ms for 500
-- CRASH    before, after: repeating the call continues with what is left
local to, most, dead_ids = ARGV[1], tonumber(ARGV[2]), ARGV[3]
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
seen()
if not converting then
  local from = stored_kinds()
  if state.seen_kind == to then return { 'OK', to, 0 } end
  local dead = {}
  for _, id in ipairs(cmsgpack.unpack(dead_ids)) do dead[id] = true end
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    if not dead[id] then return { 'LIVE', id } end
  end
  if seen_count() == 0 then
    drop_seen()
    redis.call('HSET', key.meta, 'seen_kind', to)
    return { 'OK', from, 0 }
  end
  if not seen().some then return { 'ONE_WAY', from } end
  if to == 'compact' then write_first() end -- compacting is how a user gets below maxmemory
  state.seen_kind = from .. '>' .. to
  redis.call('HSET', key.meta, 'seen_kind', state.seen_kind) -- first: see stored_kinds()
  redis.call('RENAME', key.seen, key.converting)
  opened = nil
  if seen().prepare then seen().prepare(tokens_in(converting, key.converting)) end
end
local from, under_way = string.match(state.seen_kind, '^(%l+)>(%l+)$')
if under_way ~= to then return { 'UNDER_WAY', state.seen_kind } end
if to == 'compact' then write_first() end
local tokens, old = converting.some(key.converting, most)
local done = {}
for _, token in ipairs(tokens) do
  if not old[token] then seen().add(token) end
  done[#done + 1] = token
end
if done[1] then redis.call(converting.remove, key.converting, unpack(done)) end
tidy_seen()
local left = tokens_in(converting, key.converting)
if left == 0 then redis.call('HSET', key.meta, 'seen_kind', to) end
save_state()
return { 'OK', from, left }
