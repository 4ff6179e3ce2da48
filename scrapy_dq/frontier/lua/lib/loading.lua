-- loading: how load.lua stores many items, each of them once.
-- @include bands shared
local IN_ORDER = { failed = true, samples = true, minutes = true, journal = true } -- lists, beside those of the backlog
local PART = 1000 -- even: pairs stay together
-- Calls a command on a key with all *items* from position *from* on, and returns the sum of its answers.
local function in_parts(command, name, items, from)
  local sum = 0
  for i = from or 1, #items, PART do
    sum = sum + redis.call(command, name, unpack(items, i, math.min(i + PART - 1, #items)))
  end
  return sum
end
-- How many elements of lists are stored is counted. Returns a function that adds to a list those that are not there
-- yet, and returns how many these are; and one to call at the end. Nothing: elements are missing that were there.
-- Before each list its length is noted: if this script is stopped midway, the repeat finds what was stored.
local function appender(first)
  local had = tonumber(stored_field('load:elements')) or 0
  if had < first then return end
  local known = had - first
  local torn_list, torn_length = string.match(stored_field('load:list'), '^(.*) (%d+)$')
  local function note(list)
    redis.call('HSET', key.meta, 'load:elements', string.format('%.0f', had), 'load:list', list)
  end
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
