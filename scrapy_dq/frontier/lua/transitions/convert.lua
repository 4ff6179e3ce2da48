-- convert: what was seen, of one kind -> of another, some at a time; no worker may be at work.
-- The first step renames `seen` to `converting` and notes exact>compact, or whichever, as the kind: from then on
-- nobody can join. Each step takes some out of `converting` and into the new `seen`; the last one notes the kind.
-- ARGS     to, most, dead_ids (msgpack array of worker ids known to be dead)
-- RETURNS  OK, from, left (0: it is done) | ABSENT | LIVE, worker_id | UNDER_WAY, from>to (another is begun)
--          | ONE_WAY, from (nothing can be made of it) | WRONG_TYPE, key, actual, expected
-- COST     O(most); 5 ms for 500
-- CRASH    before, after: the same call again goes on with what is left
-- USES     keys.key, kinds.KINDS, kinds.converting, kinds.drop_seen, kinds.opened, kinds.seen, kinds.tidy_seen,
--          kinds.tokens_in, midway, state, state.save_state, state.seen_count, types.wrong_type
local to, most, dead_ids = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local wrong = wrong_type()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
seen()
if not converting then
  local from = KINDS[state.seen_kind] and state.seen_kind or 'exact'
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
  local taken = redis.call('TYPE', key.converting).ok
  if taken ~= 'none' then return { 'WRONG_TYPE', key.converting, taken, 'key of a conversion' } end
  redis.call('RENAME', key.seen, key.converting)
  state.seen_kind = from .. '>' .. to
  midway.seen_kind = state.seen_kind
  redis.call('HSET', key.meta, 'seen_kind', state.seen_kind)
  midway.seen_kind = nil
  opened = nil
  if seen().prepare then seen().prepare(tokens_in(converting, key.converting)) end
end
local from, under_way = string.match(state.seen_kind, '^(%l+)>(%l+)$')
if under_way ~= to then return { 'UNDER_WAY', state.seen_kind } end
-- A script that has written, anything, may go past maxmemory: to compact is how one gets below it.
if to == 'compact' then redis.call('HDEL', key.meta, '') end
local tokens, old = converting.some(key.converting, most)
local done = {}
for _, token in ipairs(tokens) do
  if not old[token] then seen().add(token) end
  if seen().wrong then break end -- this one was not noted
  done[#done + 1] = token
end
if done[1] then redis.call(converting.remove, key.converting, unpack(done)) end
tidy_seen()
local left = tokens_in(converting, key.converting)
if left == 0 then redis.call('HSET', key.meta, 'seen_kind', to) end
save_state()
return seen().wrong or { 'OK', from, left }
