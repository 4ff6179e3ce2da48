-- present: whether a partition is in use, and the names of the partitions that are. Changes nothing.
-- ARGS     partition, cursor ('0' at first), look (about how many names to scan)
-- RETURNS  1 (entries wait there or are in flight, or it has its own limits or a block) or 0, cursor ('0': that was
--          the last part), names: those of this part
-- COST     O(look + in flight); a hash of up to 512 partitions is scanned in one part
-- CRASH    nothing to do
-- @include entry
local partition, cursor, look = ARGV[1], ARGV[2], tonumber(ARGV[3])
for _, set in ipairs({ 'rotation', 'suspects', 'resting', 'saturated', 'earliest', 'blocked' }) do
  if redis.call('ZSCORE', key[set], partition) then return { 1, '0', {} } end
end
for _, hash in ipairs({ 'bands', 'limits', 'busy', 'unsent' }) do
  if redis.call('HEXISTS', key[hash], partition) == 1 then return { 1, '0', {} } end
end
local names, told = {}, {}
local function tell(name)
  if not told[name] then names[#names + 1], told[name] = name, true end
end
if cursor == '0' then
  for _, worker_id in ipairs(redis.call('SMEMBERS', key.members)) do
    for _, record in ipairs(lease_records_of(worker_id)) do
      tell((string.gsub(partition_of(record), '^' .. DEFERRED, ''))) -- the mark of a lease whose end is deferred
    end
  end
  for _, member in ipairs(redis.call('ZRANGE', key.delayed, 0, look - 1)) do
    tell((split(member, 21)))
  end
  local limited = redis.call('HSCAN', key.limits, 0, 'COUNT', look)[2]
  for i = 1, #limited, 2 do tell(limited[i]) end
end
if told[partition] then return { 1, '0', {} } end
local scanned = redis.call('HSCAN', key.bands, cursor, 'COUNT', look)
for i = 1, #scanned[2], 2 do tell(scanned[2][i]) end
return { 0, scanned[1], names }
