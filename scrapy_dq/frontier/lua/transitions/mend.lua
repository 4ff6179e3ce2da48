-- mend: undo what a script that was stopped midway had not completed (salvage.lua), and recompute the counts.
-- Completed steps of an exchange stay: its repeat finds them. `torn` is unlinked last, so a repeat changes nothing.
-- ARGS     none
-- RETURNS  OK (also if nothing was torn) | WRONG_TYPE, key, actual, expected
-- COST     O(partitions + workers + entries that were being moved), 0.2 s for 100,000 partitions
-- CRASH    before, or stopped midway: the next caller mends it; after: nothing to do
-- USES     budgets.save_partitions, budgets.spent_change, keys.in_flight_key, keys.key, keys.worker_key, kinds.opened,
--          kinds.stored_kinds, kinds.tidy_seen, member.remove_member, put_back.give_back, put_back.note_band,
--          put_back.put_back_record, put_back.remove_token, recount, state, state.save_state, state.touched,
--          state.wrong_seen, sums.add_up, torn.stored_torn, types.only_looks, types.wrong_type, words.tell
local MOST_TOUCHED = 10000 -- no script of ours touches more partitions
only_looks = true
local wrong = wrong_type()
if wrong then return wrong end
local torn = stored_torn()
if not torn then return { 'OK' } end
local was = type(torn.state) == 'table' and torn.state or {}
local counted = state.waiting + state.in_flight + state.delayed
-- Whether Redis refused a command, which is temporary; every other error is caused by bad data in `torn`, and every
-- retry would meet it again. Redis 6.2 raises text, in front of it a code or a position that Lua writes differently.
local function is_refusal(problem)
  local words = type(problem) == 'table' and problem.err or tostring(problem)
  local of_redis = type(problem) == 'table' or string.find(words, '^%-?%u+ ') or string.find(words, '^@[^:]*: %d+: ')
  return of_redis and not (string.find(words, 'WRONGTYPE', 1, true) or string.find(words, 'must be strings', 1, true))
end
local function put_right()
  was.stored_phase, was.seen_kind = nil, nil
  for name, value in pairs(was) do
    -- A missing text is false. No count exceeds 2^53, nor is one NaN: Redis would not take it as a score.
    local fits = type(value) == type(state[name] or name ~= 'limited' and '')
    if fits and (type(value) ~= 'number' or math.abs(value) <= 2 ^ 53) then state[name] = value end
  end
  counted = state.waiting + state.in_flight + state.delayed
  if type(torn.seen_kind) == 'string' then
    local stored_kind = state.seen_kind
    state.seen_kind, opened = torn.seen_kind, nil
    local name, from = stored_kinds()
    local ours = torn.seen_kind == (from and from .. '>' .. name or name)
    if not ours or wrong_seen() then state.seen_kind = stored_kind -- no conversion: the keys have other types
    else redis.call('HSET', key.meta, 'seen_kind', torn.seen_kind) end
  end
  if torn.seen and stored_kinds() == 'compact' then
    redis.call('HSET', key.seen, 'generation', torn.seen[1], 'buckets', torn.seen[2], 'count', torn.seen[3])
  end
  if torn.token then remove_token(unpack(torn.token)) end
  tidy_seen()
  if torn.lease then
    torn.lease.partition = torn.lease.partition .. '' -- a number among the names of `touched` could not be sorted
    give_back(torn.lease)
  end
  if torn.due then redis.call('ZADD', key.delayed, 0, torn.due) end
  for _, record in ipairs(torn.pending or {}) do put_back_record(record, torn.worker) end
  for _, id in ipairs(torn.granted or {}) do
    local record = redis.call('HGET', in_flight_key(torn.worker), id)
    if record then put_back_record(record, torn.worker) end
    redis.call('HDEL', in_flight_key(torn.worker), id)
  end
  if torn.list then note_band(unpack(torn.list)) end
  -- The loop of add_up would never end from -1e300 on.
  if torn.deltas then add_up(torn.deltas, type(torn.at) == 'number' and math.max(1, torn.at) or 1) end
end
local function try(step)
  local right, problem = pcall(step)
  if not right and is_refusal(problem) then error(problem, 0) end
end
if state.epoch and was.epoch == state.epoch and was.run == state.run then try(put_right) end
-- Also a worker that was never a member: nothing else would find its record.
for _, id in ipairs({ torn.registering or torn.removing }) do try(function() remove_member(id) end) end
if state.epoch then
  redis.call('LREM', key.failed, 0, '') -- placeholders of the records that a retry has taken out
  local partitions = type(torn.partitions) == 'table' and torn.partitions or {}
  for i = 1, math.min(#partitions, MOST_TOUCHED) do -- recount() finds what waits in others
    local partition = partitions[i]
    if type(partition) == 'string' then touched[partition] = true end
  end
  recount()
  -- More was counted than is there now: keys were deleted meanwhile. The difference triggers an audit (damage.lua).
  state.waiting = state.waiting + math.max(0, counted - state.waiting - state.in_flight - state.delayed)
  if torn.seq then try(function() -- lets its repeat match, though some of its leases are already settled
    if redis.call('HEXISTS', worker_key(torn.worker), 'last_seq') == 1 then
      redis.call('HSET', worker_key(torn.worker), 'mended',
        string.format('%.0f %.0f ', torn.seq, redis.call('HLEN', in_flight_key(torn.worker))) .. torn.nonce)
    end
  end) end
  for name, n in pairs(state.run == was.run and type(torn.spent) == 'table' and torn.spent or {}) do
    if type(name) == 'string' and type(n) == 'number' and n > 0 and n < 2 ^ 53 then spent_change[name] = n end
  end
  if state.phase == 'open' then redis.call('HDEL', key.meta, 'seen_for') end
  tell() -- wake idle workers: something may be waiting
  save_state()
  save_partitions() -- last: a repeat would count again what was spent
end
redis.call('UNLINK', key.torn)
return { 'OK' }
