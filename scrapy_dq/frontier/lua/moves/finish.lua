-- finish: ends a run when nothing is left, and buries the entries that no worker can serve.
-- @include declined messages starts damage journal
-- Returns true if no declined entry waits. Else returns true if there are workers with a spider, and Redis has offered
-- all declined entries to each of them.
local function all_have_declined(members)
  local last = may_exist('declined') and redis.call('ZREVRANGE', key.declined, 0, 0, 'WITHSCORES')[2]
  local asked = not last
  for _, id in ipairs(last and members or {}) do
    local offered = fields_of(id, 'offered')[1] -- false: a program, which is offered nothing
    if offered and tonumber(offered) < tonumber(last) then return false end
    asked = asked or offered
  end
  return asked and true or false
end
-- abandon: declined -> dead letter, when only declined entries wait and every present worker has declined them.
-- ARGS     members (ids of the registered workers)
-- RETURNS  true: no declined entry is left | false: a worker may still serve some, or one call could not bury all
-- COST     O(500 * log declined + workers)
-- CRASH    before: the next exchange of any worker buries them; after: nothing to do
local function abandon(members)
  if not all_have_declined(members) then return false end
  for _, waiting in ipairs(redis.call('ZRANGE', key.declined, 0, 499)) do
    local partition, member = split(waiting, 1)
    local id, payload = string.sub(member, 17, 28), string.sub(member, 30)
    local of = declined.of(id) or { 'no worker can serve it', '' }
    redis.call('HSET', key.dead, id, cmsgpack.pack({
      of[1], wall_ms(), of[2], string.byte(member, 29) % 128, string.sub(member, 1, 16), payload, partition,
    }))
    redis.call('ZREM', key.declined, waiting)
    note_added('dead')
    state.waiting, state.unserved = state.waiting - 1, state.unserved + 1
    count_message(payload, -1)
  end
  redis.call('HSET', key.meta, 'unserved', state.unserved)
  return redis.call('EXISTS', key.declined) == 0
end
-- finish: open -> finished, if nothing is left, no worker is seeding, and no start() is interrupted. The keys stay
-- until the last worker leaves.
-- ARGS     finish_at (nil or false: the run may finish, because there is one shard; -1: it must not; -2: it must not,
--          because this is not home; any other number: it may if home's version, state.sequence, is still this number),
--          elsewhere (true: other shards are not empty)
-- RETURNS  how many workers are seeding (level 1; 0 while the backlog has entries), how many start() methods are
--          interrupted (starts.lua; 0 while anything else keeps the run open), only_over_budget (1: each waiting entry
--          is over a budget of the run or was declined by all workers, nothing is in flight or delayed, no worker can
--          add anything, and the crawl is not on hold)
-- COST     O(1) while the backlog has entries that are not over their budgets, otherwise O(workers)
-- CRASH    before: the next exchange of any worker finishes the run; after: the next exchange of each worker reports it
local function finish_if_done(finish_at, elsewhere)
  local waits = redis.call('EXISTS', key.bands, key.returned, key.quarantine) > 0
  local waiting = state.waiting - (may_exist('declined') and redis.call('ZCARD', key.declined) or 0)
  -- *over*: all waiting entries are over budgets of the run. Daily budgets do not count, because each day renews them.
  local over = waits and waiting > 0 and state.in_flight == 0 and state.budget_period == 1 and state.damage == ''
    and redis.call('EXISTS', key.rotation, key.suspects, key.resting) == 0 and saturated_by_budgets()
  if waits and waiting > 0 and not over then return 0, 0, 0 end
  local seeding, adding, busy, held = 0, false, false, false
  local members, delayed = redis.call('SMEMBERS', key.members), redis.call('EXISTS', key.delayed) == 1
  for _, id in ipairs(members) do
    local level = fields_of(id, 'seeding')[1]
    if level == '1' then seeding = seeding + 1 end
    adding = adding or level == '1' or level == '3'
    busy = busy or level ~= '0'
    held = held or leases_of(id) > 0
  end
  local quiet = not (adding or held or delayed) and state.hold == '' and all_have_declined(members) and 1 or 0
  if over then return 0, 0, quiet end
  if waits then
    -- The keys have entries although the count is 0. Workers would not lease these entries, and the run would not end.
    if not held then damaged('entries') end
    return 0, 0, 0
  end
  -- Counted entries are missing, so an audit is due. If the run finished instead, the loss would stay hidden. If a
  -- worker listens, the run does not finish, and without an audit this worker would wait forever for these entries.
  if not held and (waiting > 0 or state.in_flight > 0) then damaged('entries') end
  if may_exist('declined') and redis.call('EXISTS', key.declined) == 1 then
    -- Bury the declined entries even if a worker still listens, or if the start() of a worker has failed. Otherwise
    -- such a worker would go on waiting for these entries alone.
    local quiet_here = seeding == 0 and not (held or delayed or elsewhere) and state.hold == ''
    if not (quiet_here and abandon(members)) then return seeding, 0, quiet end
  end
  if busy or held or delayed then return seeding, 0, quiet end
  if state.delayed > 0 then damaged('entries') end
  local incomplete = incomplete_starts()
  local may_finish = not finish_at or finish_at == state.sequence
  if may_finish and state.damage == '' and incomplete == 0 and state.phase ~= 'finished' then
    state.phase = 'finished'
    redis.call('HSET', key.meta, 'ended', wall_ms())
    note_event('finished', '', 1, redis.call('HGET', key.meta, 'run_name') or '')
  end
  return seeding, incomplete, quiet
end
-- In a crawl of several shards, two things open a finished home again: a put, and a worker that raises its seeding
-- level at home for puts in other shards. A shard that is not home (finish_at is ELSEWHERE) is opened by every
-- exchange, because leave.lua marks it as finished only to clear it.
local ELSEWHERE = -2
local function raises(finish_at, seeding)
  return finish_at == ELSEWHERE or finish_at and seeding ~= '0' and seeding ~= '3'
end
local function raise_level(finish_at, seeding, was)
  if not raises(finish_at, seeding) then return end
  open_run()
  if was ~= seeding then state.sequence = state.sequence + 1 end -- so that an older finish_at cannot finish the run
end
-- Stores the seq of an exchange that found the run finished, so that a late copy of this exchange does not count as a
-- new one.
local function remember_nothing(worker_id, seq)
  redis.call('HDEL', worker_key(worker_id), 'leases') -- after its first write a script may exceed maxmemory
  redis.call('HSET', worker_key(worker_id), 'last_seq', seq, 'dropped', '', 'leases', '')
end
