-- rejoin: a live worker registers again under a new id, and keeps the leases that it still owns.
-- ARGS     new_id, identity, old_ids (newest first, separated by zero bytes), epoch, run, held (concatenated ids of the
--          worker's leases, 12 bytes each), parentless (which puts without a parent the worker has: 0 none, 1 some are
--          not confirmed, 2 all are confirmed, but may be lost), seeding (1, or 4: its start() has to run again),
--          registered (under the newest old id; 0: any), and the arguments of described.lua
-- RETURNS  OK, run, owned (concatenated ids), last_seq (the number of the last exchange under the newest old id; -1:
--          Redis knows no old id; if Redis does not know the newest old id, but an earlier one: -2 minus the number
--          under the oldest id if only this id is known, else -2 minus 2^52), commands, registered
--          | FINISHED, last_seq (2^52: the next run has begun) | LOST
-- COST     O(leases of the old id)
-- CRASH    before: nothing; after, reply lost: a repeat with the same new_id gets the same answer
-- @include base partition described endings journal stopped
local new_id, identity, epoch, run = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
local held, parentless, seeding, ours = ARGV[6], tonumber(ARGV[7]), ARGV[8], described(10)
load_sizes()
if state.epoch ~= epoch or stored_shards() ~= ours.shards then return { 'LOST' } end -- a move has changed the shards
if is_member(new_id) then
  -- The worker is alive, but until it gets an answer, it beats under its old id.
  redis.call('HINCRBY', key.beats, new_id, 1)
  return { 'OK', state.run, table.concat(redis.call('HKEYS', in_flight_key(new_id))),
    tonumber(redis.call('HGET', worker_key(new_id), 'came_from') or -1) or -1, commands(), registered_at(new_id) }
end
-- RACE: during a failover, some calls of a worker reach the old master, and others the new one. A master may know only
-- an earlier id, because the worker has rejoined under the newest old id at the other master.
local old_ids, known = {}, 1
for id in string.gmatch(ARGV[3], '[^%z]+') do old_ids[#old_ids + 1] = id end
for i = #old_ids, 1, -1 do
  if is_member(old_ids[i]) or redis.call('HEXISTS', key.absent, old_ids[i]) == 1 then known = i end
end
local old_id = old_ids[known]
local since, registered = registered_at(old_id), known > 1 and 0 or tonumber(ARGV[9])
local by_late_copy = since * registered > 0 and since ~= registered -- a late copy of a call has made this record
if state.run > run and (by_late_copy or not is_member(old_id)) then return { 'FINISHED', 2 ^ 52 } end
if state.run < run then
  -- Redis was rolled back to an earlier run. Other workers may have joined that run since, so its entries stay, and
  -- belong to this run now. But its seen set and its list of complete start() methods would have been dropped at its
  -- end. If they stayed, this run would skip pages that it has to crawl.
  local keep = ours.keep_seen ~= '0' and keeps_seen('')
  for _, field in ipairs({ 'fingerprinter', 'seen_kind' }) do -- these may have changed between the two runs
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
    free(key.saturated) -- this run has spent nothing of the partitions' budgets
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
-- If the worker was declared dead after the first copy of this call, a repeat gets the same last_seq, because `absent`
-- has it (fence.lua).
-- RACE: a late copy of the worker's join may have made a new record, to which no exchange belongs.
local last_seq = tonumber(not by_late_copy and old.last_seq or redis.call('HGET', key.absent, old_id)
  or redis.call('HGET', key.absent, 'before ' .. new_id) or -1) or -1
-- RACE: a late copy of the worker's last rejoin may have made the record. Then the field `came_from` is the last_seq in
-- the answer of this master to that rejoin.
local before = by_late_copy and old_ids[2] and tonumber(record[7] or -1) or -1
if before >= 0 then
  last_seq = -2 - (#old_ids == 2 and before or 2 ^ 52)
elseif before < -1 and #old_ids > 2 then
  last_seq = before -- this number is about the oldest id, which is the same for this call
elseif known > 1 then
  last_seq = -2 - (known == #old_ids and last_seq or 2 ^ 52)
end
if state.phase == 'finished' then
  -- If the run is not cleared, the tokens of puts are still stored: a repeated put is dropped, and a new put opens the
  -- run (put.lua). So a worker with puts that have no parent registers here. This script itself opens the run only if
  -- the worker's start() has to run again (below). If it always opened the run, and the worker died before its put, the
  -- next crawl would resume a run that has seen all its requests. A worker without puts that have no parent registers
  -- only if it is still a live member.
  local comes_back = parentless == 0 and old.fenced ~= '0' and seeding ~= AGAIN
  if comes_back or redis.call('HGET', key.meta, 'cleared') == '1' then return { 'FINISHED', last_seq } end
elseif ours.spider ~= '' and stored_field('spider') == '' then
  describe(ours) -- a program has rejoined before this worker, but a program cannot describe the run
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
  -- Register the worker after its leases are moved. If the script is stopped before this step, a repeat moves the rest.
  register(new_id, identity, ours, old, suspect, last_seq, seeding)
  remove_member(old_id)
  classify_touched(0)
  save_partitions()
else
  register(new_id, identity, ours, old, '', last_seq, seeding)
  -- An interrupted reclaim has left the old member fenced and without leases. Remove it here, because at the end of the
  -- crawl no other worker would do so.
  if old.fenced == '1' and redis.call('EXISTS', in_flight_key(old_id)) == 0 then remove_member(old_id) end
end
redis.call('HDEL', key.absent, old_id, new_id, 'before ' .. new_id)
resume_start(ours.starts, old_id)
note_shared()
if seeding == AGAIN and ours.starts ~= '' then open_run() end
save_state()
if ours.starts ~= '' then note_event('returned', new_id, #owned, old_id) end
return { 'OK', state.run, table.concat(owned), last_seq, commands(), registered_at(new_id) }
