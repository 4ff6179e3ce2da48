-- bands: finds the lists of a partition. A partition has one list per rank, and its best list is served first. A band
-- is the rank of a list, in 8 bytes.
-- @include entry
local lists -- a cache of lists' names: rank -> partition -> name; most moves of an exchange use the same few lists
-- By ZSET, then by partition: how many of the partition's first members this script has granted, but not removed yet.
-- To grant an entry is to add it to the leases of this exchange (grants.lua).
local granted_of
each_call(function() lists, granted_of = {}, {} end)
local function list_of(rank, partition)
  local of_rank = lists[rank]
  if not of_rank then
    of_rank = {}
    lists[rank] = of_rank
  end
  local list = of_rank[partition]
  if not list then
    list = backlog_key(rank_text(rank), partition)
    of_rank[partition] = list
  end
  return list
end
-- Returns the first member of a partition in a ZSET whose scores are all 0, without the partition's name. It skips
-- members that are granted, but not removed yet.
local function first_of(set, partition)
  local granted = granted_of[set] and granted_of[set][partition] or 0
  local member = redis.call('ZRANGEBYLEX', set, '[' .. partition .. '\0', '(' .. partition .. '\1',
    'LIMIT', granted, 1)[1]
  return member and string.sub(member, #partition + 2)
end
-- Registers a new list. Most partitions have a single list, and `more_bands` has no member for such a partition.
local function add_band(partition, rank)
  local band, best = rank_bytes(rank), redis.call('HGET', key.bands, partition)
  if not best or rank < unpack_rank(best) then
    -- Store the former best band first. Otherwise it would be lost if the script were stopped between the two writes.
    if best then redis.call('ZADD', key.more_bands, 0, partition .. '\0' .. best) end
    redis.call('HSET', key.bands, partition, band)
  else
    redis.call('ZADD', key.more_bands, 0, partition .. '\0' .. band)
  end
end
local function remove_best_band(partition)
  local next_best = first_of(key.more_bands, partition)
  if next_best then
    redis.call('HSET', key.bands, partition, next_best)
    redis.call('ZREM', key.more_bands, partition .. '\0' .. next_best)
  else
    redis.call('HDEL', key.bands, partition)
  end
end
-- Returns the name of the set in which a partition waits for its turn: 'rotation'; or 'suspects' if all its waiting
-- entries are in quarantine; nothing if the partition has no waiting entry.
local function turns_in(partition)
  if redis.call('HEXISTS', key.bands, partition) == 1 or first_of(key.returned, partition) then return 'rotation' end
  return first_of(key.quarantine, partition) and 'suspects'
end
