-- recount: recomputes the counts, and the set of each partition, from the keys. COST O(partitions + workers), with
-- limits O(in flight).
-- Counts the entries in lists, `returned`, `quarantine` and `declined`; adds their partitions to *found*. It also
-- removes bands without a list: they would keep a run open. *looks*: writes nothing.
-- @include partition limits
local function recount_waiting(found, looks)
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
    -- The same as the best one: a script was stopped while it became the best one.
    if band == best_of[partition] or is_empty(partition, band) then
      if not looks then redis.call('ZREM', key.more_bands, member) end
    elseif not best_of[partition] then
      best_of[partition] = band -- the best one is gone, and this is the next
      if not looks then remove_best_band(partition) end
    end
  end
  for i = 1, #best, 2 do
    if is_empty(best[i], best[i + 1]) and not looks then remove_best_band(best[i]) end
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
-- Counts the entries in flight; with limits, also by partition, and ends stints whose lease is gone.
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
  redis.call('UNLINK', key.busy)
  for partition, count in pairs(of) do redis.call('HSET', key.busy, partition, count) end
  local unsent = state.limited and redis.call('HGETALL', key.unsent) or {}
  for i = 1, #unsent, 2 do
    if not held[unsent[i + 1]] then end_stint(unsent[i], unsent[i + 1], 0) end
  end
  return in_flight
end
local function recount()
  local found = {}
  state.waiting, state.in_flight = recount_waiting(found), recount_in_flight()
  state.delayed, state.members = redis.call('ZCARD', key.delayed), redis.call('SCARD', key.members)
  free(key.saturated) -- each is checked at its turn
  for _, partition in ipairs(redis.call('ZRANGE', key.resting, 0, -1)) do
    touched[partition] = touched[partition] or not found[partition] or nil -- nothing of it waits
  end
  for partition in pairs(found) do
    if not redis.call('ZSCORE', key.rotation, partition) then touched[partition] = true end
  end
  classify_touched(0)
end
