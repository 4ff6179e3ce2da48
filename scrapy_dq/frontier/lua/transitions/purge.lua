-- purge: unlink lists, records of workers and buckets that nothing leads to: what a flush could not find, because
-- somebody else has deleted or overwritten the keys that led to it.
-- ARGS     lists (msgpack array: rank, partition, ...: of the keys that were found), worker_ids (the same),
--          buckets (the same: generation, n, ...)
-- RETURNS  OK, how many were unlinked | WRONG_TYPE, key, actual, expected
-- COST     O(keys that were found)
-- CRASH    before, after: repeating it unlinks what is left
-- USES     entry.rank_bytes, entry.rank_text, keys.backlog_key, keys.bucket_key, keys.in_flight_key, keys.key,
--          keys.worker_key, state.is_member, types.wrong_type
local wrong = wrong_type() -- in a crawl that has begun since
if wrong then return wrong end
local unlinked = 0
local function unlink(...) unlinked = unlinked + redis.call('UNLINK', ...) end
local lists, worker_ids, buckets = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
for i = 1, #lists, 2 do
  -- Not tonumber alone: no table has "nan" as a key.
  local rank, partition = tonumber(string.match(lists[i], '^%-?%d+$')), lists[i + 1]
  local band = rank and rank_text(rank) == lists[i] and rank_bytes(rank) or ''
  if redis.call('HGET', key.bands, partition) ~= band
    and not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band) then
    unlink(backlog_key(lists[i], partition))
  end
end
for _, id in ipairs(worker_ids) do
  if not is_member(id) then unlink(worker_key(id), in_flight_key(id)) end
end
local used = {}
for _, name in ipairs({ key.seen, key.converting }) do
  local generation = redis.pcall('HGET', name, 'generation')
  if type(generation) == 'string' then used[generation] = true end
end
for i = 1, #buckets, 2 do
  if not used[buckets[i]] then unlink(bucket_key(buckets[i], buckets[i + 1])) end
end
return { 'OK', unlinked }
