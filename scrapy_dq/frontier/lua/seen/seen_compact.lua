-- seen, kind compact: part of the fingerprint's SHA-1, in many small SETs (buckets.lua). key.seen is their directory,
-- a HASH: generation (part of their names), buckets, count. For the interface of a kind see kinds.lua.
-- @include kinds buckets
function KINDS.compact()
  local LOAD, MOST_SPLITS, PART = 200, 6, 1000 -- 1,000 puts of an exchange need 5 splits
  local kind = {}
  local generation, buckets, rounds, count -- once they were read; generation is false: there is none
  local changed = false
  local function look()
    if generation ~= nil then return generation end
    local stored = redis.call('HMGET', key.seen, 'generation', 'buckets', 'count')
    generation, buckets, count = stored[1], tonumber(stored[2] or FIRST), tonumber(stored[3] or 0)
    rounds = rounds_of(buckets)
    return generation
  end
  local function save()
    redis.call('HSET', key.seen, 'generation', generation, 'buckets', buckets, 'count', count)
  end
  local function begin()
    generation, count, buckets = new_generation(), 0, FIRST
    rounds = rounds_of(buckets)
    save() -- at once: buckets without a directory could never be found again
  end
  local function split()
    local whole, last = bucket_key(generation, buckets - FIRST * rounds), bucket_key(generation, buckets)
    local moving = to_the_last(redis.call('SMEMBERS', whole), buckets, rounds)
    -- Add first, then remove: if the script is stopped, each member is where it is looked up, at worst in both.
    for i = 1, #moving, PART do
      redis.call('SADD', last, unpack(moving, i, math.min(i + PART - 1, #moving)))
    end
    buckets = buckets + 1
    rounds = rounds_of(buckets)
    save()
    for i = 1, #moving, PART do
      redis.call('SREM', whole, unpack(moving, i, math.min(i + PART - 1, #moving)))
    end
  end
  local function change(command, by, n, member)
    local done = redis.call(command, bucket_key(generation, n), member)
    count, changed = count + by * done, changed or done == 1
    return done
  end
  function kind.add(token)
    if not look() then begin() end
    return change('SADD', 1, bucket_of(token, buckets, rounds)) == 1
  end
  function kind.remove(token)
    return look() and change('SREM', -1, bucket_of(token, buckets, rounds)) or 0
  end
  function kind.load(items)
    if not look() then begin() end
    for i = 1, #items, 2 do
      change('SADD', 1, bucket_with(items[i], number(sub(items[i + 1], -9)), buckets, rounds), items[i + 1])
    end
  end
  function kind.size()
    look()
    return count
  end
  function kind.tidy()
    if not changed then return end
    for _ = 1, MOST_SPLITS do
      if count <= LOAD * buckets then break end
      split()
    end
    save()
    changed = false
  end
  function kind.drop()
    if look() then discard(generation, buckets) end
    generation = nil -- read it again after key.seen is gone
  end
  return kind
end
