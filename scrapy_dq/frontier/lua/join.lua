-- join: a fresh worker becomes a member; absent -> open, finished -> the next run. Idempotent by id.
-- ARGS     worker_id, identity, new_epoch, schema, order, seen_kind, fingerprinter, spider, spider_args,
--          run_name, keep_seen (empty: as a spider's worker had it), partition_by, seen_ttl_ms (0: for ever),
--          limits (msgpack: delay_ms, concurrency, [partition, delay_ms | false, concurrency | false, ...]; empty: as
--          they are), starts (the name of its start(): starts.lua), restart_ms (for so long after the end of a run that
--          workers shared, who comes with the same arguments and no run_name is one of them, restarted)
-- RETURNS  OK | FINISHED (the run of this name is over, or this is a restarted worker of it), epoch, run, resumed,
--          census, stored spider_args, limits_changed, adopted (1: another scheduler's fingerprints are there), words
--          (steer.lua), ended_ms (FINISHED, as a restarted worker: how long ago the run ended; else -1)
--          DENIED, what Redis says, commands, ... (which this user may not call) | DIFFERS, field, stored, ours
--          | WRONG_TYPE, key, actual, expected | CONVERTING, from>to: nothing was
--          changed
-- COST     O(programs + 2); the start of a new run unlinks the keys of the last
-- CRASH    before: nothing; after: a member that never beats, fenced and drained as any dead worker
local worker_id, identity, new_epoch = ARGV[1], ARGV[2], ARGV[3]
local ours = { schema = ARGV[4], order = ARGV[5], seen_kind = ARGV[6], fingerprinter = ARGV[7],
  spider = ARGV[8], partition_by = ARGV[12] }
local spider_args, run_name, keep_seen = ARGV[9], ARGV[10], ARGV[11]
local seen_ttl_ms, limits, starts, restart_ms = tonumber(ARGV[13]), ARGV[14], ARGV[15], tonumber(ARGV[16])

local refused, words_of_redis = refused_commands()
if refused[1] then return { 'DENIED', words_of_redis, unpack(refused) } end
local wrong = wrong_type() or unfit()
if wrong then return wrong end
-- What must agree with what is stored: all of it in an open run; of a finished one, only what reads
-- the keys that may have stayed.
local agree = { 'schema', 'fingerprinter', 'spider', 'order', 'partition_by', 'seen_kind' }
if state.phase == 'finished' then
  agree = redis.call('EXISTS', key.seen) == 1 and seen_stays() and { 'schema', 'fingerprinter', 'seen_kind' }
    or { 'schema' }
end
for _, field in ipairs(agree) do
  local stored = redis.call('HGET', key.meta, field)
  -- Empty: this worker goes by whatever is stored; or none was there yet that had one.
  if stored and stored ~= '' and ours[field] ~= '' and stored ~= ours[field] then
    return { 'DIFFERS', field, stored, ours[field] }
  end
end
local function describe()
  -- A program without a spider does not know by what the fingerprints were made that stay.
  for _, field in ipairs(redis.call('EXISTS', key.seen) == 1 and { 'fingerprinter', 'seen_kind' } or {}) do
    if ours[field] == '' then ours[field] = redis.call('HGET', key.meta, field) or '' end
  end
  if keep_seen ~= '' then redis.call('HSET', key.meta, 'keep_seen', keep_seen) end
  if limits ~= '' then set_limits(limits) end
  -- In one step, as the last: before it there is no crawl, or the run before.
  redis.call('HSET', key.meta, 'epoch', state.epoch, 'run', state.run, 'phase', state.phase,
    'run_name', run_name, 'schema', ours.schema, 'order', ours.order,
    'seen_kind', ours.seen_kind, 'fingerprinter', ours.fingerprinter, 'spider', ours.spider,
    'partition_by', ours.partition_by, 'spider_args', spider_args,
    'seen_since', seen_ttl_ms > 0 and now_ms() - seen_ttl_ms or 0, 'cleared', 0)
end
local resumed, limits_changed = 0, 0
if not state.epoch then
  -- Keys without their meta belong to nobody: it was deleted, or evicted.
  clear_run(false)
  redis.call('UNLINK', key.stats)
  state.epoch, state.run, state.phase = new_epoch, 0, 'open'
  describe()
elseif state.phase == 'finished' and redis.call('SISMEMBER', key.members, worker_id) == 0 then
  local ended_ms = over_for(run_name, ours.spider, spider_args, restart_ms)
  if ended_ms then
    return { 'FINISHED', state.epoch, state.run, 1, census(), spider_args, 0, 0, words(), ended_ms }
  end
  next_run(keeps_seen(keep_seen))
  describe()
elseif ours.spider ~= '' and redis.call('HGET', key.meta, 'spider') == '' then
  -- Begun by a program that feeds it: the first worker with a spider says what it is.
  resumed = 1
  describe()
else
  resumed = 1
  for _, field in ipairs(agree) do
    if redis.call('HGET', key.meta, field) == '' then redis.call('HSET', key.meta, field, ours[field]) end
  end
  -- A run without a name takes the first one that comes: who has it finds the run finished, not the next one.
  if redis.call('HGET', key.meta, 'run_name') == '' then redis.call('HSET', key.meta, 'run_name', run_name) end
  -- Limits that were changed by hand stay as they are, until somebody comes with other settings.
  if limits ~= '' and redis.call('HGET', key.meta, 'limits_set') ~= limits then
    set_limits(limits)
    limits_changed = 1
  end
end
if redis.call('SISMEMBER', key.members, worker_id) == 0 then
  register(worker_id, identity, starts)
  note_shared()
end
save_state()
return { 'OK', state.epoch, state.run, resumed, census(), redis.call('HGET', key.meta, 'spider_args'),
  limits_changed, redis.call('EXISTS', key.adopted), words(), -1 }
