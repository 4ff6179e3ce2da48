-- audit: rebuilds the derived keys (bands, rotation, beats, counts) from their sources: lists, sorted sets and
-- in-flight hashes. Entries that are counted but not found were deleted or evicted; the audit records them as gone.
-- ARGS     epoch, run, lists (msgpack array: rank, partition, ... of the lists that a scan has found), worker_ids
--          (msgpack array of the ids in the workers' keys that the scan has found), last (1: this is the last part, so
--          compare the counts; 0: more parts follow), repair (1: repair the keys; 0: only report)
-- RETURNS  OK, how many lists had no band, how many entries are in lists that still have no band, how many partitions
--          were in no set of partition.lua, how many workers were not members, gone (how many requests; 0 before the
--          last part), seen_gone (1: the seen set is gone)
--          | LOST | RESYNC | FINISHED | WRONG_TYPE, key, actual, expected
-- COST     O(lists * log partitions); the last part O(partitions * log partitions + workers): 0.1 s for 100,000
-- CRASH    before, after: a repeat repairs the rest
-- @include base partition limits starts journal
local epoch, run, last, repair = ARGV[1], tonumber(ARGV[2]), ARGV[5] == '1', ARGV[6] == '1'
-- Counts the entries in lists, `returned`, `quarantine` and `declined`, and adds the partitions of the first three to
-- *found*. With *repair*, it also removes bands without a list, which would keep a run open. COST O(partitions)
local function recount_waiting(found)
  local waiting = 0
  local function is_empty(partition, band)
    local size = redis.call('LLEN', backlog_key(rank_text(unpack_rank(band)), partition))
    if size > 0 then waiting, found[partition] = waiting + size, true end
    return size == 0
  end
  local best, best_of = redis.call('HGETALL', key.bands), {}
  for i = 1, #best, 2 do best_of[best[i]] = best[i + 1] end
  for _, member in ipairs(redis.call('ZRANGE', key.more_bands, 0, -1)) do
    local partition, band = split(member, 1)
    -- If this band is also the best one, a script was stopped between the two writes that replace the best band.
    if band == best_of[partition] or is_empty(partition, band) then
      if repair then redis.call('ZREM', key.more_bands, member) end
    elseif not best_of[partition] then
      best_of[partition] = band -- the best band is gone, and this band is the next
      if repair then remove_best_band(partition) end
    end
  end
  for i = 1, #best, 2 do
    if is_empty(best[i], best[i + 1]) and repair then remove_best_band(best[i]) end
  end
  for _, set in ipairs({ key.returned, key.quarantine }) do
    waiting = waiting + redis.call('ZCARD', set)
    local from = '-'
    while from do -- one step per partition: each may have many members
      local member = redis.call('ZRANGEBYLEX', set, from, '+', 'LIMIT', 0, 1)[1]
      local partition = member and split(member, 1)
      if partition then found[partition] = true end
      from = partition and '(' .. partition .. '\1'
    end
  end
  return waiting + redis.call('ZCARD', key.declined)
end
-- Counts the entries in flight. With limits and *repair*, it also counts them by partition, and ends stints whose last
-- lease is gone. COST O(workers); with limits also O(in flight)
local function recount_in_flight()
  local in_flight, of, held = 0, {}, {}
  for _, worker_id in ipairs(redis.call('SMEMBERS', key.members)) do
    in_flight = in_flight + leases_of(worker_id)
    local leases = state.limited and redis.call('HGETALL', in_flight_key(worker_id)) or {}
    for i = 1, #leases, 2 do
      local partition = partition_of(leases[i + 1])
      of[partition], held[leases[i]] = (of[partition] or 0) + 1, true
    end
  end
  if not repair then return in_flight end
  redis.call('UNLINK', key.busy)
  for partition, count in pairs(of) do redis.call('HSET', key.busy, partition, count) end
  local unsent = state.limited and redis.call('HGETALL', key.unsent) or {}
  for i = 1, #unsent, 2 do
    if not held[unsent[i + 1]] then end_stint(unsent[i], unsent[i + 1], 0) end
  end
  return in_flight
end
local lists, worker_ids = cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
load_sizes()
local answer = stale(epoch, run)
if answer then return { answer } end
local lost_bands, bandless, lost_partitions, lost_members, waits = 0, 0, 0, 0, {}
local function check_partition(partition)
  if waits[partition] then return end
  waits[partition], touched[partition] = true, repair or nil
  for _, where in ipairs(PLACES) do
    if redis.call('ZSCORE', key[where], partition) then return end
  end
  lost_partitions = lost_partitions + 1
end
for i = 1, #lists, 2 do
  local rank, partition = tonumber(lists[i]), lists[i + 1]
  local size = redis.call('LLEN', backlog_key(lists[i], partition))
  if size > 0 then
    local band, best = rank_bytes(rank), redis.call('HGET', key.bands, partition)
    if best ~= band and (not best or not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band)) then
      lost_bands = lost_bands + 1
      if repair then add_band(partition, rank) else bandless = bandless + size end
    end
    check_partition(partition)
  end
end
for _, id in ipairs(worker_ids) do
  -- If a worker has left since the scan found its key, its keys are gone, and it does not count as lost.
  if redis.call('SISMEMBER', key.members, id) == 0
    and redis.call('EXISTS', worker_key(id), in_flight_key(id)) > 0 then
    lost_members = lost_members + 1
    if repair then
      -- Without its record, the worker cannot exchange any more. Fence it, so that another worker reclaims its leases.
      if redis.call('HEXISTS', worker_key(id), 'last_seq') == 0 then
        note_broken(UNKNOWN, id)
        redis.call('HSET', worker_key(id), 'last_seq', 0, 'seeding', 0, 'fenced', 1, 'identity', '{}')
      end
      redis.call('SADD', key.members, id) -- beat.lua restores its heartbeat
    end
  end
end
local gone, seen_gone = 0, 0
if last then
  local counted, found = state.waiting + state.in_flight + state.delayed, {}
  state.waiting, state.in_flight = recount_waiting(found), recount_in_flight()
  state.delayed, state.members = redis.call('ZCARD', key.delayed), redis.call('SCARD', key.members)
  for partition in pairs(found) do check_partition(partition) end
  if repair then
    free(key.saturated) -- lease.lua checks each partition at its turn
    for _, partition in ipairs(redis.call('ZRANGE', key.resting, 0, -1)) do
      touched[partition] = touched[partition] or not found[partition] or nil -- no entry of this partition waits
    end
  end
  gone = math.max(0, counted - state.waiting - state.in_flight - state.delayed)
  if state.torn and state.torn ~= '0' then gone = 0 end -- the stored counts are not certain (stopped.lua)
  if state.seen < 0 then seen_gone, state.seen = 1, 0 end
  if repair and gone + seen_gone > 0 then
    state.gone = state.gone + gone + seen_gone
    redis.call('HSET', key.meta, 'gone', state.gone)
  end
end
if repair then
  classify_touched(0)
  save_partitions()
  save_state()
  if gone + seen_gone > 0 then note_event('damaged', '', gone + seen_gone) end
  if last then
    redis.call('LREM', key.failed, 0, '') -- placeholders of a retry that was stopped
    redis.call('HDEL', key.meta, 'torn')
  end
end
return { 'OK', lost_bands, bandless, lost_partitions, lost_members, gone, seen_gone }
