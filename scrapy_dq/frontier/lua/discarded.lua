-- discarded: buckets of a `seen` that was dropped. To unlink millions of keys in one step would hold up Redis, so
-- they are noted here, and unlinked some at a time: by exchanges, and by whoever has dropped them (sweep.lua).
local MOST_GENERATIONS = 16
local function discard(generation, buckets)
  redis.call('HSET', key.discarded, generation, buckets)
  now_there('discarded')
end
-- Unlinks about *most* buckets, and returns whether some are left.
local function sweep_some(most)
  local found = redis.call('HSCAN', key.discarded, 0, 'COUNT', MOST_GENERATIONS)[2]
  for i = 1, math.min(#found, 2 * MOST_GENERATIONS), 2 do
    local generation, left = found[i], tonumber(found[i + 1]) or 0
    local names = {}
    while left > 0 and #names < most do
      left = left - 1
      names[#names + 1] = bucket_key(generation, left)
    end
    if names[1] then redis.call('UNLINK', unpack(names)) end
    if left > 0 then
      redis.call('HSET', key.discarded, generation, left)
      return true
    end
    redis.call('HDEL', key.discarded, generation)
    most = most - #names
  end
  return redis.call('EXISTS', key.discarded) == 1
end
