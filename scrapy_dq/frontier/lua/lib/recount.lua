-- recount: what is counted, and where each partition stands, anew from the keys. COST O(partitions + workers), with
-- limits O(in flight).
-- USES     entry.partition_of, entry.rank_text, entry.split, entry.unpack_rank, keys.backlog_key, keys.in_flight_key,
--          keys.key, limits.free_saturated, partition.classify_touched, politeness.end_stint, state, state.touched
-- How many entries the lists have, and what came back; each partition is noted in *found*. *looks*: nothing is written.
local function recount_waiting(found, looks)
  local waiting = 0
  local function look_at(partition, band)
    if #band ~= 8 then return end -- no band: a stranger's
    local size = redis.pcall('LLEN', backlog_key(rank_text(unpack_rank(band)), partition))
    if type(size) == 'number' and size > 0 then waiting, found[partition] = waiting + size, true end
  end
  local best = redis.call('HGETALL', key.bands)
  local best_of = {}
  for i = 1, #best, 2 do
    best_of[best[i]] = best[i + 1]
    look_at(best[i], best[i + 1])
  end
  for _, member in ipairs(redis.call('ZRANGE', key.more_bands, 0, -1)) do
    local partition, band
    if string.find(member, '\0', 1, true) then partition, band = split(member, 1) end
    if partition and band == best_of[partition] and not looks then
      redis.call('ZREM', key.more_bands, member) -- it became the best one, and that was stopped half-way
    elseif partition and band ~= best_of[partition] then
      look_at(partition, band)
    end
  end
  for _, set in ipairs({ key.returned, key.quarantine }) do
    waiting = waiting + redis.call('ZCARD', set)
    local from = '-'
    while from do -- from partition to partition: what waits in each may be large
      local member = redis.call('ZRANGEBYLEX', set, from, '+', 'LIMIT', 0, 1)[1]
      local stop = member and string.find(member, '\0', 1, true)
      if stop then
        found[string.sub(member, 1, stop - 1)] = true
      elseif member then -- no entry: somebody else wrote it
        waiting = waiting - 1
        if not looks then redis.call('ZREM', set, member) end
      end
      from = member and '(' .. (stop and string.sub(member, 1, stop - 1) .. '\1' or member)
    end
  end
  return waiting
end
-- How many are in flight; with limits, of each partition, too, and a stint whose lease is gone is over.
local function recount_in_flight()
  local in_flight, of, held = 0, {}, {}
  for _, worker_id in ipairs(redis.call('SMEMBERS', key.members)) do
    local name = in_flight_key(worker_id)
    in_flight = in_flight + redis.call('HLEN', name)
    local leases = state.limited and redis.call('HGETALL', name) or {}
    for i = 1, #leases, 2 do
      if string.find(leases[i + 1], '\0', 10, true) then -- else a stranger's
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
  free_saturated() -- each is looked at when its turn comes
  for partition in pairs(found) do
    if not redis.call('ZSCORE', key.rotation, partition) then touched[partition] = true end
  end
  classify_touched(0)
end
