-- limits: sets the limits of partitions, from the settings of a worker or by a command of a user.
-- @include entry
-- Returns all partitions of *waiting* (`resting` or `saturated`) to the rotation.
local function free(waiting)
  if redis.call('EXISTS', waiting) == 0 then return end
  -- lease.lua checks each partition at its turn, and puts it back if the partition still has to wait.
  redis.call('ZUNIONSTORE', key.rotation, 2, key.rotation, waiting, 'weights', 1, 0, 'AGGREGATE', 'MAX')
  redis.call('UNLINK', waiting)
end
-- Sets the limits of one partition; false or nil: the crawl's default.
local function set_own_limits(partition, delay_ms, concurrency, budget)
  if delay_ms or concurrency or budget then
    local text = (delay_ms or '') .. ':' .. (concurrency or '')
    redis.call('HSET', key.limits, partition, budget and text .. ':' .. budget or text)
  else
    redis.call('HDEL', key.limits, partition)
  end
end
-- Begins to count the entries in flight of each partition, when a run gets its first limit.
local function begin_to_limit()
  if state.limited then return end
  state.limited = true
  redis.call('UNLINK', key.busy) -- an earlier script that was stopped here may have left this key
  for _, worker_id in ipairs(redis.call('SMEMBERS', key.members)) do
    for _, record in ipairs(lease_records_of(worker_id)) do
      count_busy(partition_of(record), 1)
    end
  end
  save_partitions()
  save_limiting()
end
-- Replaces all limits with the limits of a worker's settings.
local function set_limits(packed)
  local delay_ms, concurrency, own, budget, budget_period, own_budgets = unpack(cmsgpack.unpack(packed))
  if state.budget_period == 2 then free(key.resting) end -- some partitions may rest until midnight
  if delay_ms > 0 or concurrency > 0 or #own > 0 or budget_period then
    begin_to_limit()
  elseif state.in_flight == 0 then
    state.limited = false
  end
  state.delay_ms, state.concurrency = delay_ms, concurrency
  state.budget, state.budget_period = budget or 0, budget_period or 1
  save_limiting()
  redis.call('UNLINK', key.limits)
  for i = 1, #own, 3 do
    set_own_limits(own[i], own[i + 1], own[i + 2], own_budgets and own_budgets[own[i]])
  end
  free(key.saturated)
  redis.call('HSET', key.meta, 'limits_set', packed) -- last, because from then on the limits count as set
end
