-- politeness: the limits of partitions: delay, concurrency, blocks and budgets.
-- @include key_sizes
-- politeness: delay and concurrency of each partition, over all workers. Times: ms of the crawl's clock (now_ms). A
-- stint is a group of leases that one worker gets of a partition with a delay, each with its own time for sending.
--   limits    HASH  partition -> "<delay ms>:<concurrency>[:<budget>]", each empty if the crawl's default holds
--   busy      HASH  partition -> how many of its entries are in flight
--   unsent    HASH  partition -> id of the last lease of a stint: until it is sent, no worker leases from the partition
--   earliest  ZSET  partition, score: the earliest time at which one of its requests may be sent
--   blocked   ZSET  partition, score: the end of a block that the site or a user has asked for
local DEFERRED = '\2' -- begins the partition of a lease whose end is deferred, which counts only against a budget
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
local busy_change -- by partition; written once, by save_partitions()
each_call(function() busy_change = {} end)
local function count_busy(partition, change)
  if not state.limited then return end
  busy_change[partition] = (busy_change[partition] or 0) + change
end
local function busy_of(partition)
  return tonumber(redis.call('HGET', key.busy, partition) or 0) + (busy_change[partition] or 0)
end
-- Returns the end of a partition's block; 0: none.
local function blocked_until(partition) return tonumber(redis.call('ZSCORE', key.blocked, partition) or 0) end
local function earliest_of(partition)
  return polite and tonumber(redis.call('ZSCORE', key.earliest, partition) or 0) or 0
end
local function set_earliest(partition, at)
  local blocked = blocked_until(partition)
  polite = true
  redis.call('ZADD', key.earliest, math.max(at, blocked), partition)
end
-- Ends a stint, because its worker has sent the last lease *age* ms ago. *age* false: the worker will never send this
-- lease, so the next request of the partition may be sent immediately.
local function end_stint(partition, id, age)
  if redis.call('HGET', key.unsent, partition) ~= id then return end
  set_earliest(partition, age and now_ms() - age + limits_of(partition) or now_ms())
  redis.call('HDEL', key.unsent, partition)
end
-- Processes the end of a lease, for any reason: the lease no longer counts. If it was not sent, it counts as sent now.
local function lease_ended(partition, id)
  if not state.limited then return end
  count_busy(partition, -1)
  if string.sub(partition, 1, 1) == DEFERRED then
    touched[string.sub(partition, 2)] = true -- it counted against a budget
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
-- budgets: how many requests of a partition may be done in a run, or on a day (UTC). Further requests wait.
--   spent     HASH  partition -> "<run or day> <requests that were sent, and are done or failed>"
-- A partition spends its budget on requests that are done or failed in this run, or on this day. Leases only use it.
local spent_change -- by partition; written once, by save_partitions()
each_call(function() spent_change = {} end)
local function period() return state.budget_period == 2 and math.floor(wall_ms() / DAY_MS) or state.run end
local function spent_by(partition)
  local of, count = string.match(redis.call('HGET', key.spent, partition) or '', '^(%d+) (%d+)$')
  return (tonumber(of) == period() and tonumber(count) or 0) + (spent_change[partition] or 0)
end
-- Counts a request that is done or failed; *never_sent*: no site got the request.
local function count_spent(partition, never_sent)
  if never_sent then
    state.never_sent = state.never_sent + 1
    return
  end
  -- Only partitions with a budget are counted: otherwise each host of the crawl would leave a field.
  local _, _, budget = limits_of(partition)
  if budget > 0 then spent_change[partition] = (spent_change[partition] or 0) + 1 end
end
-- Whether a partition has spent its budget for this run, or for this day.
local function is_spent(partition)
  local _, _, budget = limits_of(partition)
  return budget > 0 and spent_by(partition) >= budget
end
-- Returns how much of the budget is used: spent, in flight, or done and waiting for puts in other shards.
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
    busy_change[partition] = nil -- first: stopped.lua may call this again
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
