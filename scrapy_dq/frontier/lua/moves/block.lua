-- block: all workers leave a partition alone for a time; a block that ends before the current one changes nothing.
-- ARGS     partition, wait_ms
-- RETURNS  nothing
-- COST     O(log partitions)
-- CRASH    before: the site will ask for it again; after: nothing to do
-- @include politeness
local function block(partition, wait_ms)
  local until_ms = now_ms() + wait_ms
  if until_ms <= blocked_until(partition) then return end
  set_earliest(partition, math.max(until_ms, earliest_of(partition)))
  redis.call('ZADD', key.blocked, until_ms, partition)
  touched[partition] = true
end
