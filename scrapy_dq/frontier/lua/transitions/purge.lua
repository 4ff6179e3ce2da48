-- purge: unlinks lists, records of workers and buckets to which no other key refers. A flush could not find them,
-- because the keys that referred to them were deleted or evicted.
-- ARGS     lists (msgpack array: rank, partition, ... of the lists that a scan has found), worker_ids (msgpack array of
--          the ids in the workers' keys), buckets (msgpack array: generation, n, ... of the buckets)
-- RETURNS  OK, how many keys were unlinked
-- COST     O(keys that were found)
-- CRASH    before, after: a repeat unlinks the rest
-- @include base entry
load_sizes()
local unlinked = 0
local function unlink(...) unlinked = unlinked + redis.call('UNLINK', ...) end
local lists, worker_ids, buckets = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
for i = 1, #lists, 2 do
  local rank, partition = tonumber(lists[i]), lists[i + 1]
  local band = rank and rank_bytes(rank) or ''
  if redis.call('HGET', key.bands, partition) ~= band
    and not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band) then
    unlink(backlog_key(lists[i], partition))
  end
end
for _, id in ipairs(worker_ids) do
  if not is_member(id) then unlink(worker_key(id), in_flight_key(id)) end
end
local generation = redis.pcall('HGET', key.seen, 'generation')
for i = 1, #buckets, 2 do
  if buckets[i] ~= generation then unlink(bucket_key(buckets[i], buckets[i + 1])) end
end
return { 'OK', unlinked }
