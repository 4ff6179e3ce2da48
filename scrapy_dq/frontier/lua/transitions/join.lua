-- join: a new worker becomes a member; absent -> open, finished -> open, as the next run. A repeat with the same
-- worker_id registers no second member.
-- ARGS     worker_id, identity, new_epoch, restart_ms (for this time after a run of several hosts has ended, a worker
--          without a run_name, but with the run's spider and arguments, counts as a restarted worker of the run),
--          of_run (the run of home, whose epoch is new_epoch; -1: this is home), exist (1: home has noted that this
--          shard exists), replaces (the epoch of another crawl that may be deleted here; empty: none; see follow_home),
--          kind (of the worker's start keys; empty: it has none), and the arguments of described.lua
-- RETURNS  OK | FINISHED (the run with this run_name is over, or the worker is a restarted or late one of the finished
--          run), then: epoch, run, resumed (1: the run was open before), census, stored spider_args, limits_before
--          (packed; empty: the limits have not changed), adopted (1: another scheduler's fingerprints are stored),
--          commands (commands.lua), ended_ms (for a restarted worker: how long ago the run ended; else -1), crawled (1:
--          another worker with a start() has taken part in this run), forgotten (how many failed requests and dead
--          letters of the previous run are still in `seen`, although their records are deleted), registered, exist (1:
--          all other shards exist), run_name (as stored)
--          | LOST | OTHER, epoch | LATER, run (see follow_home) | DENIED, the error of Redis, commands, ... (that this
--          user may not call) | DIFFERS, field, stored, ours | WRONG_TYPE, key, actual, expected
-- COST     O(workers); the start of a new run unlinks the keys of the previous run
-- CRASH    before: nothing; after: the member never beats, so other workers fence and drain it like any dead worker
-- @include base journal described rights stopped
-- If the next run keeps the seen set: removes from it the fingerprints of pages that no worker of the last run could
-- serve, and returns how many. So these pages are new again, because workers may have the code for them now.
local function unmark_unserved()
  local all, count = state.unserved > 0 and redis.call('HGETALL', key.decliners) or {}, 0
  for i = 1, #all, 2 do
    local fingerprint = cmsgpack.unpack(all[i + 1])[3]
    if fingerprint ~= '' and redis.call('HEXISTS', key.dead, all[i]) == 1 then
      remove_seen(fingerprint)
      count = count + 1
    end
  end
  if count > 0 then tidy_seen() end
  return count
end
-- Returns whether a joining worker begins a run in this shard. A shard that is not home follows home, which has the
-- epoch and the run of the crawl (docs/internals/shards.md).
local function is_over(of_run)
  if of_run < 0 or not state.epoch then return state.phase == 'finished' end
  return state.run < of_run or redis.call('HGET', key.meta, 'cleared') == '1'
end
-- Prepares a shard for a joining worker. *run*: home's run; -1: this is home. Returns nothing if the worker can join
-- here. Otherwise returns LOST: home knows the shard (*exists*), but it is absent or has another epoch; LATER: a later
-- run than home's has begun here; or OTHER: the shard has another crawl, or was cleared at the end of home's run. If
-- *replaces* is the epoch of the shard, the worker can join in spite of OTHER: this function deletes the other crawl,
-- or the cleared shard begins home's run.
-- RACE: while a worker joins, home may be lost, so that the crawl in this shard is newer than the worker's. Or the run
-- may end, so that this shard is cleared. So after OTHER, the worker asks home again. Then it passes the epoch that it
-- got with OTHER as *replaces*, so that it replaces no third crawl.
local function follow_home(epoch, run, exists, replaces)
  if run < 0 then return end
  if state.epoch == epoch then
    if state.run > run then return 'LATER' end
    return state.run == run and is_over(run) and epoch ~= replaces and 'OTHER' or nil
  end
  if exists then return 'LOST' end
  if not state.epoch then return end
  if state.epoch ~= replaces then return 'OTHER' end
  clear_run(false)
  redis.call('UNLINK', key.meta, key.dead, key.failed, key.limits, key.spent)
  load_state()
end
-- Replaces the limits of an open run with the *packed* limits of a joining worker (empty: it sets none). Returns the
-- old limits, packed; or an empty string if the limits have not changed.
local NO_LIMITS = cmsgpack.pack({ 0, 0, {} })
local function replace_limits(packed, worker_id)
  local old_limits = redis.call('HGET', key.meta, 'limits_set') or NO_LIMITS
  if packed == '' or packed == old_limits then return '' end
  local old, about = { state.delay_ms / 1000, state.concurrency, state.budget }, {}
  set_limits(packed)
  local new = { state.delay_ms / 1000, state.concurrency, state.budget }
  for i, name in ipairs({ 'delay', 'concurrency', 'budget' }) do
    if old[i] ~= new[i] then about[#about + 1] = string.format('%s %g -> %g', name, old[i], new[i]) end
  end
  note_event('limits', worker_id, 1, about[1] and table.concat(about, ', ') or 'of single partitions')
  return old_limits
end
local worker_id, identity, new_epoch, restart_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local of_run, exist, replaces, ours = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], described(9)
local refused, message = refused_commands(ARGV[8])
if refused[1] then return { 'DENIED', message, unpack(refused) } end
load_sizes()
local apart = follow_home(new_epoch, of_run, exist, replaces)
if apart then return { apart, apart == 'LATER' and state.run or state.epoch or '' } end
local over = is_over(of_run)
local agree, differs = agreement(ours, over)
if differs then return differs end
local resumed, limits_before, forgotten, joins = 0, '', 0, false
if not state.epoch then
  -- If other keys exist without meta, then meta was deleted or evicted, and these keys are useless.
  clear_run(false)
  redis.call('UNLINK', key.stats, key.samples, key.minutes, key.journal)
  state.epoch, state.run, state.phase = new_epoch, math.max(0, of_run), 'open'
  redis.call('HSET', key.meta, 'began', wall_ms())
  describe(ours)
elseif over and redis.call('SISMEMBER', key.members, worker_id) == 0 then
  -- If this worker was the first one in the finished run, it has left, and this call is a late copy of its join. A late
  -- copy must not begin the next run, because that would delete the data for a retry.
  local left_this_run = of_run < 0 and stored_field('crawled') == worker_id and -1
  local ended_ms = left_this_run or of_run < 0 and ended_ms_ago(ours, restart_ms)
  if ended_ms then
    return { 'FINISHED', state.epoch, state.run, 1, census(), ours.spider_args, '', 0, commands(), ended_ms, 1, 0, 0, 0,
      ours.run_name }
  end
  if keeps_seen(ours.keep_seen) and seen_stays() then
    forgotten = state.failed + redis.call('HLEN', key.dead) - unmark_unserved()
  end
  next_run(keeps_seen(ours.keep_seen))
  state.run = of_run < 0 and state.run or of_run
  describe(ours)
elseif ours.spider ~= '' and stored_field('spider') == '' then
  resumed = 1 -- a program that pushes requests has begun the run; the first worker with a spider describes it
  describe(ours)
else
  resumed = 1
  if of_run >= 0 then open_run() end -- the last worker has left this shard, but the run continues at home
  for _, field in ipairs(agree) do
    if stored_field(field) == '' and field ~= 'shards' then redis.call('HSET', key.meta, field, ours[field]) end
  end
  -- A run without a name takes the name of the first worker that has one. So if a worker with this name joins after the
  -- end of the run, it gets FINISHED, and does not start the next run.
  if stored_field('run_name') == '' then redis.call('HSET', key.meta, 'run_name', ours.run_name) end
  -- Limits that a user has changed by a command stay until a worker with other limits in its settings joins.
  limits_before = replace_limits(ours.limits, worker_id)
end
if redis.call('SISMEMBER', key.members, worker_id) == 0 then
  register(worker_id, identity, ours)
  note_shared()
  joins = ours.starts ~= ''
else
  redis.call('HINCRBY', key.beats, worker_id, 1) -- the worker is alive, but beats only after it has got the answer
end
local crawled = stored_field('crawled')
if crawled == '' and ours.starts ~= '' then redis.call('HSET', key.meta, 'crawled', worker_id) end
save_state()
if resumed == 0 then note_event('began', worker_id, 1, stored_field('run_name')) end
if joins then note_event('joined', worker_id, 1) end
return { 'OK', state.epoch, state.run, resumed, census(), stored_field('spider_args'), limits_before,
  redis.call('EXISTS', key.adopted), commands(), -1, crawled ~= '' and crawled ~= worker_id and 1 or 0, forgotten,
  registered_at(worker_id), stored_field('shards_exist') == '1' and 1 or 0, stored_field('run_name') }
