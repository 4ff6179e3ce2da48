-- seen kind compact: stores a part of each fingerprint's SHA-1 in many small SETs, the buckets.
-- @include kinds
-- A bucket is a small SET of integers, which Redis packs into 8 bytes each (an intset). For each fingerprint, this kind
-- keeps 73.76 bits of the SHA-1. 10 of these bits select one of 1,024 first buckets and are not stored. The other bits
-- are stored as an integer of 64 bits: a sign, a digit from 1 to 8, and two groups of nine digits. The script handles
-- this integer as text, because a Lua number has only 53 bits. The text must have the form that Redis uses for
-- integers. Otherwise, with a leading zero or beyond 2^63, it would turn the intset into a hash table.
-- The buckets grow by linear hashing: their number grows by one at a time. During a round, each bucket is split once,
-- one bucket after another. The next bit of the number in a member's last nine digits decides whether the member moves
-- to the new bucket. A round begins with FIRST * rounds buckets, and ends with twice as many; `rounds` is a power of
-- two.
-- key.seen is the directory of the buckets, a HASH: generation (part of the buckets' names), buckets (how many), count
-- (of tokens). For the interface of a kind see kinds.lua.
function KINDS.compact()
  local FIRST = 1024
  local function rounds_of(buckets)
    local _, exponent = math.frexp(buckets / FIRST)
    return 2 ^ (exponent - 1)
  end
  -- Returns the number of the bucket of a member whose first bucket is *first*, and whose last nine digits are *last*.
  local function bucket_with(first, last, buckets, rounds)
    local n = first + FIRST * (last % (2 * rounds))
    return n >= buckets and n - FIRST * rounds or n
  end
  -- Returns the number of a token's bucket, and the member that is stored there.
  local sub, number, format, sha1hex = string.sub, tonumber, string.format, redis.sha1hex
  local function bucket_of(token, buckets, rounds)
    local hex = sha1hex(token) -- uniformly distributed, whatever a fingerprinter returns
    local bits = number(sub(hex, 1, 4), 16) -- read at most 8 digits at once, because a C long may have 32 bits
    local last = number(sub(hex, 13, 20), 16) % 1000000000
    local first = bits % FIRST
    return bucket_with(first, last, buckets, rounds), format('%s%d%09d%09d', bits >= 32768 and '-' or '',
      (bits - first) / FIRST % 8 + 1, number(sub(hex, 5, 12), 16) % 1000000000, last)
  end
  -- *members*: all members of the bucket that is split next. Returns the members that move to the new, last bucket.
  local function moving_members(members, buckets, rounds)
    local modulus, remainder, moving = 2 * rounds, math.floor(buckets / FIRST), {}
    for _, member in ipairs(members) do
      local last = number(sub(member, -9))
      if last and last % modulus == remainder then moving[#moving + 1] = member end
    end
    return moving
  end
  local LOAD, MAX_SPLITS = 200, 6 -- tokens per bucket; splits per script: the 1,000 puts of an exchange need 5
  local kind = {}
  -- load_directory() or begin() sets these. generation: nil: the directory is not read yet; false: it does not exist.
  local generation, buckets, rounds, count
  local changed = false
  local function load_directory()
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
    -- Use a generation that never existed. Otherwise this directory would contain the buckets of a lost directory.
    generation, count, buckets = string.format('%.0f', wall_us()), 0, FIRST
    rounds = rounds_of(buckets)
    save() -- before any bucket, because buckets without a directory could never be found again
  end
  local function split()
    local whole, last = bucket_key(generation, buckets - FIRST * rounds), bucket_key(generation, buckets)
    local moving = moving_members(redis.call('SMEMBERS', whole), buckets, rounds)
    -- Add first, then remove: if the script is stopped in between, each member is where a search looks for it, perhaps
    -- in both buckets.
    if moving[1] then redis.call('SADD', last, unpack(moving)) end
    buckets = buckets + 1
    rounds = rounds_of(buckets)
    save()
    if moving[1] then redis.call('SREM', whole, unpack(moving)) end
  end
  local function change(command, by, n, member)
    local done = redis.call(command, bucket_key(generation, n), member)
    count, changed = count + by * done, changed or done == 1
    return done
  end
  function kind.add(token)
    if not load_directory() then begin() end
    return change('SADD', 1, bucket_of(token, buckets, rounds)) == 1
  end
  function kind.has(token)
    if not load_directory() then return false end
    local n, member = bucket_of(token, buckets, rounds)
    return redis.call('SISMEMBER', bucket_key(generation, n), member) == 1
  end
  function kind.remove(token)
    return load_directory() and change('SREM', -1, bucket_of(token, buckets, rounds)) or 0
  end
  function kind.load(items)
    if not load_directory() then begin() end
    for i = 1, #items, 2 do
      change('SADD', 1, bucket_with(items[i], number(sub(items[i + 1], -9)), buckets, rounds), items[i + 1])
    end
  end
  function kind.size()
    load_directory()
    return count
  end
  function kind.tidy()
    if not changed then return end
    for _ = 1, MAX_SPLITS do
      if count <= LOAD * buckets then break end
      split()
    end
    save()
    changed = false
  end
  function kind.drop()
    if load_directory() then
      redis.call('HSET', key.discarded, generation, buckets)
      note_added('discarded')
    end
    generation = nil -- load_directory() reads the directory again, after key.seen is gone
  end
  return kind
end
