-- budgets: how many requests of a partition may be done in a run, or on a day (UTC): what is over that waits.
--   spent     HASH  partition -> "<run or day> <requests that were sent, and are done or failed>"
-- How much of its budget a partition has spent: requests that are done or failed, in this run or on this day.
-- @include politeness
local spent_change -- by partition; written once, by save_partitions()
each_call(function() spent_change = {} end)
local function period() return state.budget_period == 2 and math.floor(wall_ms() / DAY_MS) or state.run end
local function spent_by(partition)
  local of, count = string.match(redis.call('HGET', key.spent, partition) or '', '^(%d+) (%d+)$')
  return (tonumber(of) == period() and tonumber(count) or 0) + (spent_change[partition] or 0)
end
-- Counts a request that is done or failed; *never_sent*: no site got it.
local function count_spent(partition, never_sent)
  if never_sent then
    state.never_sent = state.never_sent + 1
    return
  end
  -- Only where there is a budget: else each host that a crawl meets would leave a field.
  local _, _, budget = limits_of(partition)
  if budget > 0 then spent_change[partition] = (spent_change[partition] or 0) + 1 end
end
-- Whether a partition gets nothing more in this run, or on this day.
local function is_spent(partition)
  local _, _, budget = limits_of(partition)
  return budget > 0 and spent_by(partition) >= budget
end
-- How much of it no other lease may have: also what is in flight, or done and waits for its puts in other shards.
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
    if was and was ~= day then redis.call('UNLINK', key.spent) end -- it is all of earlier days
  end
  for partition in pairs(spent_change) do
    redis.call('HSET', key.spent, partition, string.format('%d %d', period(), spent_by(partition)))
    spent_change[partition] = nil
  end
end
