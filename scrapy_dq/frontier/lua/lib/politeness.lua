-- politeness: delay and concurrency of each partition, over all workers. Times are those of Redis, in ms.
--   limits    HASH  partition -> "<delay ms>:<concurrency>[:<budget>]", each empty if the crawl's default holds
--   busy      HASH  partition -> how many of its entries are in flight
--   unsent    HASH  partition -> id of the last lease of a stint: until it is sent, no other worker leases
--   earliest  ZSET  partition, score: the earliest time at which one of its requests may be sent
--   blocked   ZSET  partition, score: the end of a block that its site or a person has asked for
-- @include key_sizes
local DEFERRED = '\2' -- begins the partition in the record of a lease whose end is deferred: only a budget counts it
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
-- When the block of a partition ends.
local function blocked_until(partition) return tonumber(redis.call('ZSCORE', key.blocked, partition) or 0) end
local function earliest_of(partition)
  return polite and tonumber(redis.call('ZSCORE', key.earliest, partition) or 0) or 0
end
local function set_earliest(partition, at)
  local blocked = blocked_until(partition)
  polite = true
  redis.call('ZADD', key.earliest, math.max(at, blocked), partition)
end
-- The worker that leased last from a partition with a delay has sent all of it, *age* ms ago; false: the last one was
-- not sent, and the next request may go in its place.
local function end_stint(partition, id, age)
  if redis.call('HGET', key.unsent, partition) ~= id then return end
  set_earliest(partition, age and now_ms() - age + limits_of(partition) or now_ms())
  redis.call('HDEL', key.unsent, partition)
end
-- A lease has ended, for whatever reason: it is not counted any more, and if it was not sent, it counts as sent now.
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
-- Returns those of *partitions* {name -> ...} that are blocked for more than *ahead* ms.
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
