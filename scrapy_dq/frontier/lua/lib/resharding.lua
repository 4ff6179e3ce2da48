-- resharding: what arrive.lua and depart.lua share.
-- Whether this shard takes part in that reshard, and that process owns it (reshard.lua).
local function is_owned(epoch, change, owner)
  return state.epoch == epoch and stored_field('shards') == change and stored_field('reshard:owner') == owner
end
local PART = 1000 -- even: pairs stay together
-- Calls a command on a key with all *items* from position *first* on, and returns the sum of its answers.
local function in_parts(command, name, items, first)
  local sum = 0
  for i = first or 1, #items, PART do
    sum = sum + redis.call(command, name, unpack(items, i, math.min(i + PART - 1, #items)))
  end
  return sum
end
-- How many elements of lists have arrived from a shard is counted. Returns a function that adds to a list those that
-- are not there yet, and returns how many these are; and one to call at the end. Nothing: elements are missing that
-- had arrived. Before each list its length is noted: if this script is stopped midway, the repeat finds what arrived.
local function appender(from, first)
  local field, mark = 'reshard:from ' .. from, 'reshard:list ' .. from
  local had = tonumber(stored_field(field)) or 0
  if had < first then return end
  local known = had - first
  local torn_list, torn_length = string.match(stored_field(mark), '^(.*) (%d+)$')
  local function note(list) redis.call('HSET', key.meta, field, string.format('%.0f', had), mark, list) end
  local function append(list, elements)
    local length = redis.call('LLEN', list)
    if list == torn_list then
      had, known, torn_list = had + length - torn_length, known + length - torn_length, nil
    end
    local skipped = math.min(known, #elements)
    known = known - skipped
    if skipped < #elements then
      note(list .. ' ' .. length)
      in_parts('RPUSH', list, elements, skipped + 1)
      had = had + #elements - skipped
    end
    return #elements - skipped
  end
  return append, function() note('') end
end
-- A new list may have no band yet: no worker would find it.
local function note_band(partition, rank)
  local band = rank_bytes(rank)
  if redis.call('EXISTS', list_of(rank, partition)) == 0 then return end
  if redis.call('HGET', key.bands, partition) == band then return end
  if not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band) then add_band(partition, rank) end
end
