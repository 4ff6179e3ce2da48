-- sizes: returns how many entries wait in the lists of some partitions, and how long it takes to serve these entries
-- under the partitions' delays and blocks. Changes nothing.
-- ARGS     cursor ('0' in the first call), count (about how many partitions to examine), top (how many of the largest
--          partitions to return, and how many of the slowest)
-- RETURNS  cursor (for the next call; '0': this was the last part), how many partitions have lists, how many were
--          examined, flat (partition, entries, delay_ms, concurrency, blocked_ms, takes_ms, ...) in no order
-- COST     O(count * log partitions); a hash of up to 512 partitions is scanned in one part
-- CRASH    nothing to do
-- Entries in `returned` and `quarantine` are not counted, because they are few.
-- @include entry
local MAX_LISTS = 50 -- of one partition
local cursor, count, top = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
load_state()
local scanned = redis.call('HSCAN', key.bands, cursor, 'COUNT', count)
local several = redis.call('EXISTS', key.more_bands) == 1
local names, bands = {}, {}
local function add_partition(partition, band)
  if not band or bands[partition] then return end
  names[#names + 1], bands[partition] = partition, band
end
for i = 1, #scanned[2], 2 do add_partition(scanned[2][i], scanned[2][i + 1]) end
local examined = #names
if cursor == '0' then
  -- Add some partitions with their own limits, and the partitions with the longest blocks. The slowest partitions are
  -- probably among these, even if the call examines only a few of many partitions.
  local more = math.ceil(count / 2)
  local limited = redis.call('HSCAN', key.limits, 0, 'COUNT', more)[2]
  for i = 1, #limited, 2 do add_partition(limited[i], redis.call('HGET', key.bands, limited[i])) end
  for _, partition in ipairs(redis.call('ZREVRANGE', key.blocked, 0, more - 1)) do
    add_partition(partition, redis.call('HGET', key.bands, partition))
  end
end
local function entries_of(partition, band)
  return redis.call('LLEN', backlog_key(rank_text(unpack_rank(band)), partition))
end
local own = names[1] and redis.call('HMGET', key.limits, unpack(names))
local blocked_until = names[1] and redis.call('ZMSCORE', key.blocked, unpack(names))
local ENTRIES, TAKES = 2, 6
local largest, slowest, reported, flat = {}, {}, {}, {}
local function rank_among(best, by, candidate)
  if #best >= top and candidate[by] <= best[#best][by] then return end
  local place = #best + 1
  while place > 1 and best[place - 1][by] < candidate[by] do place = place - 1 end
  table.insert(best, place, candidate)
  best[top + 1] = nil
end
for i, partition in ipairs(names) do
  local entries = entries_of(partition, bands[partition])
  if several then
    local others = redis.call('ZRANGEBYLEX', key.more_bands, '[' .. partition .. '\0', '(' .. partition .. '\1',
      'LIMIT', 0, MAX_LISTS - 1)
    for _, member in ipairs(others) do
      entries = entries + entries_of(partition, string.sub(member, #partition + 2))
    end
  end
  local delay, concurrency = parse_limits(own[i])
  delay, concurrency = delay or state.delay_ms, concurrency or state.concurrency
  local blocked = blocked_until[i] and math.max(0, blocked_until[i] - now_ms()) or 0
  local found = { partition, entries, delay, concurrency, blocked, blocked + entries * delay }
  rank_among(largest, ENTRIES, found)
  rank_among(slowest, TAKES, found)
end
for _, best in ipairs({ largest, slowest }) do
  for _, found in ipairs(best) do
    for _, part in ipairs(reported[found] and {} or found) do flat[#flat + 1] = part end
    reported[found] = true
  end
end
return { scanned[1], redis.call('HLEN', key.bands), examined, flat }
