-- rejoin: a live worker registers again and keeps the leases that it still owns. Idempotent by new_id.
-- ARGS     new_id, identity, old_ids (newest first, a zero byte between), epoch, run, held (ids of 12 bytes, joined),
--          parentless (0 none, 1 waiting, 2 logged), seeding (1, or 4: start() runs again), registered (of
--          old_id; 0: any), and the arguments of described.lua
-- RETURNS  OK, run, owned (ids, joined), last_seq (as stored for the newest id; -1: no id is known; if only an older id
--          is known: -2 minus the last_seq of the oldest id, or -2 minus 2^52 for a newer id), commands, registered
--          | FINISHED, last_seq (2^52: the next run has begun) | LOST
-- COST     O(leases of old_id)
-- CRASH    before: nothing; after, reply lost: a repeat with the same new_id gets the same answer
-- @include base partition described endings journal stopped
local new_id, identity, epoch, run = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
local held, parentless, seeding, ours = ARGV[6], tonumber(ARGV[7]), ARGV[8], described(10)
load_sizes()
if state.epoch ~= epoch or stored_shards() ~= ours.shards then return { 'LOST' } end -- a move has changed the shards
if is_member(new_id) then
  redis.call('HINCRBY', key.beats, new_id, 1) -- the worker is alive; until the answer, its heartbeats are under old_id
  return { 'OK', state.run, table.concat(redis.call('HKEYS', in_flight_key(new_id))),
    tonumber(redis.call('HGET', worker_key(new_id), 'came_from') or -1) or -1, commands(), registered_at(new_id) }
end
-- RACE: in a failover, calls of a worker reach the old master and the new one in turn. A master may know only an older
-- id, because the worker got the newest id from the other master.
local old_ids, known = {}, 1
for id in string.gmatch(ARGV[3], '[^%z]+') do old_ids[#old_ids + 1] = id end
for i = #old_ids, 1, -1 do
  if is_member(old_ids[i]) or redis.call('HEXISTS', key.absent, old_ids[i]) == 1 then known = i end
end
local old_id = old_ids[known]
local since, registered = registered_at(old_id), known > 1 and 0 or tonumber(ARGV[9])
local by_late_copy = since * registered > 0 and since ~= registered -- a late copy has made this record
if state.run > run and (by_late_copy or not is_member(old_id)) then return { 'FINISHED', 2 ^ 52 } end
if state.run < run then
  -- Redis was rolled back to an earlier run. Other workers may have joined the earlier run since, so its entries stay,
  -- and belong to this run now. But its seen set and completed start() methods would hide pages of this run: the end of
  -- the earlier run would have dropped them.
  local keep = ours.keep_seen ~= '0' and keeps_seen('')
  for _, field in ipairs({ 'fingerprinter', 'seen_kind' }) do -- they may have changed between the two runs
    keep = keep and (ours[field] == '' or stored_field(field) == ours[field])
  end
  if state.phase == 'finished' then
    next_run(keep)
  else
    if not keep or not seen_stays() then
      drop_seen()
      redis.call('UNLINK', key.adopted)
    end
    redis.call('UNLINK', key.seeds)
    forget_done_starts()
    free(key.saturated) -- this run has spent nothing of their budgets
    send_command('forgets') -- the other workers must not put waiting entries again under the same ids
  end
  state.run, ours.limits = run, ours.limits == stored_field('limits_set') and '' or ours.limits
  describe(ours)
end
local record = redis.call('HMGET', worker_key(old_id), 'fenced', 'since', 'done', 'last_seq', 'joined', 'offered',
  'came_from')
local old = { fenced = record[1], since = record[2], done = record[3], last_seq = record[4], joined = record[5],
  offered = record[6] }
if not old.last_seq and is_member(old_id) then old.last_seq = 2 ^ 52 end -- the record was deleted, not rolled back
-- If the worker was declared dead between two calls, the repeat gets the same last_seq as the first call (fence.lua).
-- RACE: a late copy of its join may have made a new record since, which has no exchange.
local last_seq = tonumber(not by_late_copy and old.last_seq or redis.call('HGET', key.absent, old_id)
  or redis.call('HGET', key.absent, 'before ' .. new_id) or -1) or -1
-- RACE: a late copy of its last rejoin has made that record. Its field `came_from` shows how much this master knows of
-- the previous id.
local before = by_late_copy and old_ids[2] and tonumber(record[7] or -1) or -1
if before >= 0 then
  last_seq = -2 - (#old_ids == 2 and before or 2 ^ 52)
elseif before < -1 and #old_ids > 2 then
  last_seq = before -- it is for the oldest id, which has not changed
elseif known > 1 then
  last_seq = -2 - (known == #old_ids and last_seq or 2 ^ 52)
end
if state.phase == 'finished' then
  -- The tokens of puts are still stored: repeated puts are dropped, and a new put opens the run (put.lua). If this
  -- script opened the run and this worker died, the next crawl would resume a run that has already seen all its
  -- requests. A live member stays a member. If its start() has to run again, this script opens the run (below).
  local comes_back = parentless == 0 and old.fenced ~= '0' and seeding ~= AGAIN
  if comes_back or redis.call('HGET', key.meta, 'cleared') == '1' then return { 'FINISHED', last_seq } end
elseif ours.spider ~= '' and stored_field('spider') == '' then
  describe(ours) -- a program rejoined first, and a program cannot describe the run
end
local owned, suspect = {}, ''
if old.fenced == '0' then
  local held_ids = {}
  for i = 1, #held, 12 do held_ids[string.sub(held, i, i + 11)] = true end
  local leases = redis.call('HGETALL', in_flight_key(old_id))
  for i = 1, #leases, 2 do
    if held_ids[leases[i]] then
      redis.call('HSET', in_flight_key(new_id), leases[i], leases[i + 1])
      if string.byte(leases[i + 1], 9) >= 128 then suspect = leases[i] end
      owned[#owned + 1] = leases[i]
    else
      release(old_id, leases[i], read_lease(old_id, leases[i]))
    end
  end
  -- Register the worker only now: if the script is stopped before this, the repeat has to do everything.
  register(new_id, identity, ours, old, suspect, last_seq, seeding)
  remove_member(old_id)
  classify_touched(0)
  save_partitions()
else
  register(new_id, identity, ours, old, '', last_seq, seeding)
  -- The reclaim of the old member was interrupted. At the end of the crawl, no worker would remove it.
  if old.fenced == '1' and redis.call('EXISTS', in_flight_key(old_id)) == 0 then remove_member(old_id) end
end
redis.call('HDEL', key.absent, old_id, new_id, 'before ' .. new_id)
resume_start(ours.starts, old_id)
note_shared()
if seeding == AGAIN and ours.starts ~= '' then open_run() end
save_state()
if ours.starts ~= '' then note_event('returned', new_id, #owned, old_id) end
return { 'OK', state.run, table.concat(owned), last_seq, commands(), registered_at(new_id) }
