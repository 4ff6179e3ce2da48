-- largest: how much waits in the lists of some partitions, the largest first. Changes nothing.
-- ARGS     cursor ('0' at first), look (about how many partitions), top (how many of them to tell of)
-- RETURNS  cursor ('0': that was the last part), partitions that have lists, how many were looked at,
--          flat (partition, entries, ...)
-- COST     O(look * log partitions); a hash of up to 512 partitions is looked at in one part
-- CRASH    nothing to do
-- What came back (returned, quarantine) is not counted: it is little.
local MOST_LISTS = 50 -- of one partition
local cursor, look, top = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local scanned = redis.call('HSCAN', key.bands, cursor, 'COUNT', look)
local several = redis.call('EXISTS', key.more_bands) == 1
local function entries_of(partition, band)
  -- A list may be gone, or something else of that name.
  local count = redis.pcall('LLEN', backlog_key(rank_text(unpack_rank(band)), partition))
  return type(count) == 'number' and count or 0
end
local found, flat = {}, {}
for i = 1, #scanned[2], 2 do
  local partition = scanned[2][i]
  local entries = entries_of(partition, scanned[2][i + 1])
  if several then
    local others = redis.call('ZRANGEBYLEX', key.more_bands, '[' .. partition .. '\0', '(' .. partition .. '\1',
      'LIMIT', 0, MOST_LISTS - 1)
    for _, member in ipairs(others) do
      entries = entries + entries_of(partition, string.sub(member, #partition + 2))
    end
  end
  found[#found + 1] = { partition, entries }
end
table.sort(found, function(a, b) return a[2] > b[2] end)
for i = 1, math.min(top, #found) do
  flat[2 * i - 1] = found[i][1]
  flat[2 * i] = found[i][2]
end
return { scanned[1], redis.call('HLEN', key.bands), #found, flat }
