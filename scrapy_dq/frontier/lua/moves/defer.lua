-- defer: in-flight -> in-flight, done: the end of its lease waits for its puts in other shards (deferred_ends.py).
-- It counts against no limit any more, and if its worker dies, it is not a suspect.
-- ARGS     worker_id, id
-- RETURNS  nothing
-- COST     O(1)
-- CRASH    before: the entry stays in flight as it is; after: it is reclaimed, and no attempt is charged
-- USES     entry.holds_suspect, entry.partition_of, keys.in_flight_key, keys.worker_key, politeness.DEFERRED,
--          politeness.count_busy, politeness.lease_ended
local function defer(worker_id, id)
  local record = redis.call('HGET', in_flight_key(worker_id), id)
  if not record or not string.find(record, '\0', 10, true) then return end -- reclaimed, or not ours
  local partition, flags = partition_of(record), string.byte(record, 9)
  if string.sub(partition, 1, 1) == DEFERRED then return end
  if flags >= 128 or holds_suspect == id then
    redis.call('HSET', worker_key(worker_id), 'quarantined', '')
    holds_suspect = false
  end
  redis.call('HSET', in_flight_key(worker_id), id,
    string.sub(record, 1, 8) .. string.char(flags % 128) .. DEFERRED .. string.sub(record, 10))
  lease_ended(partition, id)
  count_busy(DEFERRED .. partition, 1)
end
