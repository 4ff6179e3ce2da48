-- sent: the last lease of a stint was sent; the partition's delay starts at that time.
-- ARGS     worker_id, partition, id, age (ms since it was sent, by the worker's clock; false: it never will be)
-- RETURNS  nothing
-- COST     O(log partitions)
-- CRASH    before: the partition waits for its lease to be settled or reclaimed; after: nothing to do
-- @include politeness
local function sent(worker_id, partition, id, age)
  -- It may have been reclaimed from this worker and leased to another worker that has not sent it yet.
  if redis.call('HEXISTS', in_flight_key(worker_id), id) == 0 then return end
  end_stint(partition, id, age)
  touched[partition] = true
end
