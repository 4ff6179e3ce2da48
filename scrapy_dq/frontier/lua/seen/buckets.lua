-- buckets: where a compact `seen` stores its tokens. Each is a small SET of integers, which Redis packs into 8 bytes
-- each (an intset). Of a fingerprint's SHA-1, 73.76 bits are kept: 10 of them select one of 1,024 first buckets and
-- are not stored; the rest is one integer of 64 bits: a sign, a digit from 1 to 8, and two groups of nine digits. Here
-- it is always text, because a Lua number has 53 bits. A member that Redis would format differently (with a leading
-- zero, or beyond 2^63) would turn the intset into a hash table.
-- Linear hashing: the number of buckets grows by one at a time. A round splits each bucket in turn by the next bit of
-- the last nine digits; in a round, FIRST * rounds <= buckets < 2 * FIRST * rounds.
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
  local bits = number(sub(hex, 1, 4), 16) -- at most 8 digits at once: a C long may have 32 bits
  local last = number(sub(hex, 13, 20), 16) % 1000000000
  local first = bits % FIRST
  return bucket_with(first, last, buckets, rounds), format('%s%d%09d%09d', bits >= 32768 and '-' or '',
    (bits - first) / FIRST % 8 + 1, number(sub(hex, 5, 12), 16) % 1000000000, last)
end
-- *members*: all members of the bucket that is split next. Returns those that move to the new, last bucket.
local function to_the_last(members, buckets, rounds)
  local modulus, remainder, moving = 2 * rounds, math.floor(buckets / FIRST), {}
  for _, member in ipairs(members) do
    local last = number(sub(member, -9))
    if last and last % modulus == remainder then moving[#moving + 1] = member end
  end
  return moving
end
-- Returns a name that no buckets ever had: buckets of a directory that is gone must not be used as new ones.
local function new_generation()
  local time, digits = redis.call('TIME'), {}
  local rest = time[1] * 1000000 + time[2]
  while rest > 0 do
    local digit = rest % 36
    digits[#digits + 1] = string.sub('0123456789abcdefghijklmnopqrstuvwxyz', digit + 1, digit + 1)
    rest = (rest - digit) / 36
  end
  return table.concat(digits)
end
