-- defer: in-flight -> in-flight, done: the end of its lease waits for its puts in other shards (deferred_ends.py).
-- It counts against no limit any more but the budget, and if its worker dies, it is not a suspect.
-- ARGS     worker_id, ids (at most 1,000)
-- RETURNS  nothing
-- COST     O(ids)
-- CRASH    before: the entries stay in flight as they are; after: they are reclaimed, and no attempt is charged
-- @include entry
local function defer(worker_id, ids)
  local changed = {}
  for i, record in ipairs(redis.call('HMGET', in_flight_key(worker_id), unpack(ids))) do
    -- Else it was reclaimed, or was deferred before.
    if record and string.sub(record, 10, 10) ~= DEFERRED then
      local flags = string.byte(record, 9)
      if flags >= 128 or holds_suspect == ids[i] then
        redis.call('HSET', worker_key(worker_id), 'quarantined', '')
        holds_suspect = false
      end
      changed[#changed + 1] = ids[i]
      changed[#changed + 1] = string.sub(record, 1, 8) .. string.char(flags % 128) .. DEFERRED .. string.sub(record, 10)
      if state.limited then
        local partition = partition_of(record)
        lease_ended(partition, ids[i])
        count_busy(DEFERRED .. partition, 1)
      end
    end
  end
  if changed[1] then redis.call('HSET', in_flight_key(worker_id), unpack(changed)) end
end
