-- recount: recomputes the counts, and the set of each partition, from the keys. COST O(partitions + workers), with
-- limits O(in flight).
-- USES     bands.remove_best_band, entry.partition_of, entry.rank_text, entry.split, entry.unpack_rank, held.leases_of,
--          held.read_hash, keys.MOST_NAME, keys.backlog_key, keys.in_flight_key, keys.key, limits.free,
--          partition.classify_touched, politeness.end_stint, state, state.touched
-- Counts the entries in lists, `returned`, `quarantine` and `declined`; adds their partitions to *found*. It also
-- removes bands without a list (or whose key has another type: nothing in it is an entry), and what is no entry, and
-- corrects scores: they would keep a run open. *looks*: writes nothing.
local function recount_waiting(found, looks)
  local waiting = 0
  local function is_empty(partition, band)
    if #band ~= 8 or #partition > MOST_NAME then return true end -- not ours
    local size = redis.pcall('LLEN', backlog_key(rank_text(unpack_rank(band)), partition))
    local is_list = type(size) == 'number' and size > 0
    if is_list then waiting, found[partition] = waiting + size, true end
    return not is_list
  end
  local function sort_by_bytes(set)
    for _, range in ipairs({ { '-inf', '(0' }, { '(0', '+inf' } }) do
      local odd = redis.call('ZRANGEBYSCORE', set, range[1], range[2], 'LIMIT', 0, looks and 0 or 10000)
      for _, member in ipairs(odd) do redis.call('ZADD', set, 0, member) end
    end
  end
  sort_by_bytes(key.more_bands)
  local best, best_of = redis.call('HGETALL', key.bands), {}
  for i = 1, #best, 2 do best_of[best[i]] = best[i + 1] end
  for _, member in ipairs(redis.call('ZRANGE', key.more_bands, 0, -1)) do
    local partition, band
    if string.find(member, '\0', 1, true) then partition, band = split(member, 1) end
    -- The same as the best one: a script was stopped while it became the best one.
    if not partition or band == best_of[partition] or is_empty(partition, band) then
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
    sort_by_bytes(set)
    waiting = waiting + redis.call('ZCARD', set)
    local from = '-'
    while from do -- one step per partition: each may have many members
      local member = redis.call('ZRANGEBYLEX', set, from, '+', 'LIMIT', 0, 1)[1]
      local stop = member and string.find(string.sub(member, 1, MOST_NAME + 1), '\0', 1, true)
      if stop then
        found[string.sub(member, 1, stop - 1)] = true
      elseif member then -- no entry: somebody else wrote it
        waiting = waiting - 1
        if not looks then redis.call('ZREM', set, member) end
      end
      from = member and '(' .. (stop and string.sub(member, 1, stop - 1) .. '\1' or member)
    end
  end
  return waiting + redis.call('ZCARD', key.declined)
end
-- Counts the entries in flight; with limits, also by partition, and ends stints whose lease is gone.
local function recount_in_flight()
  local in_flight, of, held = 0, {}, {}
  for _, worker_id in ipairs(redis.call('SMEMBERS', key.members)) do
    in_flight = in_flight + (leases_of(worker_id) or 0)
    local leases = state.limited and read_hash('HGETALL', in_flight_key(worker_id)) or {}
    for i = 1, #leases, 2 do
      if string.find(leases[i + 1], '\0', 10, true) then -- else not ours
        local partition = partition_of(leases[i + 1])
        of[partition], held[leases[i]] = (of[partition] or 0) + 1, true
      end
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
