-- politeness: applies the limits of partitions: delay, concurrency, blocks and budgets.
-- @include key_sizes
-- A partition's delay and concurrency apply to all workers together. Times are in ms of the crawl's clock (now_ms). A
-- stint is a group of leases that one worker gets together from a partition with a delay. Each lease of a stint has its
-- own time for sending.
--   limits    HASH  partition -> "<delay ms>:<concurrency>[:<budget>]", each empty if the crawl's default holds
--   busy      HASH  partition -> how many of its entries are in flight
--   unsent    HASH  partition -> id of the last lease of a stint. No worker leases from the partition until the request
--                   of this lease is sent, or the lease ends
--   earliest  ZSET  partition, score: the earliest time at which one of its requests may be sent
--   blocked   ZSET  partition, score: the end of a block that the site or a user has asked for
local DEFERRED = '\2' -- first byte of the partition in a deferred lease (see defer), which counts only against budgets
local function parse_limits(text)
  local delay, concurrency, budget = string.match(text or '', '^(%d*):(%d*):?(%d*)$')
  return tonumber(delay), tonumber(concurrency), tonumber(budget)
end
local function own_limits(partition) return parse_limits(redis.call('HGET', key.limits, partition)) end
-- Returns delay (ms), concurrency and budget; 0: no limit.
local function limits_of(partition)
  if not state.limited or partition == CLAIMED then return 0, 0, 0 end
  local delay, concurrency, budget = own_limits(partition)
  return delay or state.delay_ms, concurrency or state.concurrency, budget or state.budget
end
local busy_change -- partition -> change of `busy`; save_partitions() writes these changes once
each_call(function() busy_change = {} end)
local function count_busy(partition, change)
  if not state.limited then return end
  busy_change[partition] = (busy_change[partition] or 0) + change
end
local function busy_of(partition)
  return tonumber(redis.call('HGET', key.busy, partition) or 0) + (busy_change[partition] or 0)
end
-- Returns the end of a partition's block; 0: it has no block.
local function blocked_until(partition) return tonumber(redis.call('ZSCORE', key.blocked, partition) or 0) end
local function earliest_of(partition)
  return polite and tonumber(redis.call('ZSCORE', key.earliest, partition) or 0) or 0
end
local function set_earliest(partition, at)
  local blocked = blocked_until(partition)
  polite = true
  redis.call('ZADD', key.earliest, math.max(at, blocked), partition)
end
-- Ends the stint of a partition if *id* is its last lease. *age*: how many ms ago the worker has sent the request of
-- this lease. *age* false: the worker will never send it, so the partition's next request may be sent immediately.
local function end_stint(partition, id, age)
  if redis.call('HGET', key.unsent, partition) ~= id then return end
  set_earliest(partition, age and now_ms() - age + limits_of(partition) or now_ms())
  redis.call('HDEL', key.unsent, partition)
end
-- Updates the partition of a lease that ends for any reason. If the request was not sent, it counts as sent now.
local function lease_ended(partition, id)
  if not state.limited then return end
  count_busy(partition, -1)
  if string.sub(partition, 1, 1) == DEFERRED then
    touched[string.sub(partition, 2)] = true -- the lease counted against a budget, which may have room now
    return
  end
  end_stint(partition, id, 0)
  touched[partition] = true
end
-- Returns the names in *partitions* {name -> ...} that are blocked for more than *ahead* ms.
local function blocked_among(partitions, ahead)
  local found = {}
  if polite and redis.call('EXISTS', key.blocked) == 1 then
    for partition in pairs(partitions) do
      if blocked_until(partition) > now_ms() + ahead then
        found[#found + 1] = partition
      end
    end
  end
  return found
end
local function forget_past(set)
  local past = redis.call('ZRANGEBYSCORE', set, '-inf', '(' .. now_ms(), 'LIMIT', 0, 500)
  if #past > 0 then redis.call('ZREM', set, unpack(past)) end
end
-- A budget limits how many requests of a partition are sent in a run or on a day (UTC). Further requests wait.
--   spent     HASH  partition -> "<run or day> <requests that were sent, and are done or failed>"
-- A sent request spends the budget when it is done or has failed. Until then, its lease uses a part of the budget.
local spent_change -- partition -> change of `spent`; save_partitions() writes these changes once
each_call(function() spent_change = {} end)
local function period() return state.budget_period == 2 and math.floor(wall_ms() / DAY_MS) or state.run end
local function spent_by(partition)
  local of, count = string.match(redis.call('HGET', key.spent, partition) or '', '^(%d+) (%d+)$')
  return (tonumber(of) == period() and tonumber(count) or 0) + (spent_change[partition] or 0)
end
-- Counts a request that is done or failed. *never_sent*: no site got the request, so it spends no budget.
local function count_spent(partition, never_sent)
  if never_sent then
    state.never_sent = state.never_sent + 1
    return
  end
  -- Only partitions with a budget are counted. Otherwise each host of the crawl would leave a field in `spent`.
  local _, _, budget = limits_of(partition)
  if budget > 0 then spent_change[partition] = (spent_change[partition] or 0) + 1 end
end
-- Returns whether a partition has spent its budget for this run, or for this day.
local function is_spent(partition)
  local _, _, budget = limits_of(partition)
  return budget > 0 and spent_by(partition) >= budget
end
-- Returns how many requests of the budget are used: they are spent, in flight, or deferred until puts in other shards
-- are retired.
local function used_by(partition)
  return spent_by(partition) + busy_of(partition) + busy_of(DEFERRED .. partition)
end
local function is_saturated(partition)
  if not state.limited then return false end
  if redis.call('HEXISTS', key.unsent, partition) == 1 then return true end
  local _, concurrency, budget = limits_of(partition)
  return concurrency > 0 and busy_of(partition) >= concurrency or budget > 0 and used_by(partition) >= budget
end
local function save_partitions()
  for partition, change in pairs(busy_change) do
    busy_change[partition] = nil -- first, because stopped.lua may call this function again
    if change ~= 0 and redis.call('HINCRBY', key.busy, partition, change) <= 0 then
      redis.call('HDEL', key.busy, partition)
    end
  end
  if state.budget_period == 2 and next(spent_change) then
    local day = string.format('%d', period())
    local was = redis.call('HGET', key.meta, 'spent_on')
    if was ~= day then redis.call('HSET', key.meta, 'spent_on', day) end
    if was and was ~= day then redis.call('UNLINK', key.spent) end -- all its counts are from earlier days
  end
  for partition in pairs(spent_change) do
    redis.call('HSET', key.spent, partition, string.format('%d %d', period(), spent_by(partition)))
    spent_change[partition] = nil
  end
end
