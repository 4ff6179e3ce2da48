-- put back: returns what a stopped script was moving to where it came from.
-- USES     bands.add_band, bands.list_of, entry.ELEMENT, entry.come_back, entry.rank_bytes, entry.read_record,
--          entry.split, entry.whole, keys.in_flight_key, keys.key, keys.worker_key, kinds.remove_seen
local function put_back(id, lease)
  come_back(lease.quarantined and 'quarantine' or 'returned', id, lease)
end
-- For an entry that was granted to this worker, which has not been notified.
local function put_back_record(record, worker_id)
  local lease = read_record(record)
  lease.attempts, lease.quarantined = lease.flags % 128, lease.flags >= 128
  local _, element = split(record, 10)
  if lease.quarantined then redis.call('HSET', worker_key(worker_id), 'quarantined', '') end
  put_back(string.sub(whole(element, ELEMENT), 9, 20), lease)
end
-- For a lease that was taken from a worker: the worker gets it back, to settle it again; if the worker is gone, the
-- entry returns to the backlog.
local function give_back(lease)
  if not lease.worker or redis.call('SISMEMBER', key.members, lease.worker) == 0 then
    return put_back(lease.id, lease)
  end
  redis.call('HSET', in_flight_key(lease.worker), lease.id, string.sub(lease.place, 1, 8) .. string.char(lease.flags)
    .. lease.partition .. '\0' .. string.sub(lease.place, 9, 16) .. lease.id .. lease.payload)
  if lease.quarantined then redis.call('HSET', worker_key(lease.worker), 'quarantined', lease.id) end
end
local function remove_token(admission, token)
  if admission == 1 then return remove_seen(token) end
  redis.call('SREM', admission == 2 and key.seeds or key.admitted, token)
end
-- A new list may have no band yet: no worker would find it.
local function note_band(partition, rank)
  local band = rank_bytes(rank)
  if redis.call('EXISTS', list_of(rank, partition)) == 0 then return end
  if redis.call('HGET', key.bands, partition) == band then return end
  if not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band) then add_band(partition, rank) end
end
