-- discarded: unlinks the buckets of a compact `seen` (seen_compact.lua) that was dropped. Redis would block if a script
-- unlinked millions of keys in one step. So the key `discarded` records the buckets, and each exchange unlinks some of
-- them. The client whose call has dropped this `seen` also unlinks buckets (sweep.lua).
-- @include state
-- Unlinks about *most* buckets, and returns whether some are left.
local function sweep_buckets(most)
  -- HSCAN from 0 does not work here: it finds nothing once the first slots of a large hash are empty.
  local found = redis.call('HRANDFIELD', key.discarded, 16, 'WITHVALUES')
  for i = 1, #found, 2 do
    local generation, left = found[i], tonumber(found[i + 1])
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
