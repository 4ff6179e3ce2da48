-- buckets: in which a compact `seen` keeps what it has seen. Each is a small SET of integers, which Redis packs into
-- 8 bytes each (an intset). Of a fingerprint's SHA-1, 73.76 bits are kept: 10 of them say which of 1,024 first
-- buckets it is, and are not stored; the rest is one integer of 64 bits: a sign, a digit from 1 to 8, and twice
-- nine digits. It is only ever text here: a Lua number has 53 bits. A member that Redis would write otherwise (with
-- a zero in front, or beyond 2^63) would turn the intset into a hash table.
-- Linear hashing: the number of buckets grows by one at a time. A round divides each bucket in turn by the next
-- bit of the last nine digits; in a round, FIRST * rounds <= buckets < 2 * FIRST * rounds.
local FIRST = 1024
local function rounds_of(buckets)
  local _, exponent = math.frexp(buckets / FIRST)
  return 2 ^ (exponent - 1)
end
-- Returns the bucket of a token, by number, and what is stored of it there.
local sub, number, format, sha1hex = string.sub, tonumber, string.format, redis.sha1hex
local function bucket_of(token, buckets, rounds)
  local hex = sha1hex(token) -- whatever a fingerprinter returns: these bits are even
  local bits = number(sub(hex, 1, 4), 16) -- no more than 8 digits at once: a long may have 32 bits
  local last = number(sub(hex, 13, 20), 16) % 1000000000
  local first = bits % FIRST
  local n = first + FIRST * (last % (2 * rounds))
  if n >= buckets then n = n - FIRST * rounds end
  return n, format('%s%d%09d%09d', bits >= 32768 and '-' or '', (bits - first) / FIRST % 8 + 1,
    number(sub(hex, 5, 12), 16) % 1000000000, last)
end
-- Returns those of *members*, which are all that the bucket to divide next has, that go to the new, last one.
local function to_the_last(members, buckets, rounds)
  local modulus, remainder, moving = 2 * rounds, math.floor(buckets / FIRST), {}
  for _, member in ipairs(members) do
    local last = number(sub(member, -9))
    if last and last % modulus == remainder then moving[#moving + 1] = member end
  end
  return moving
end
-- A name that no buckets ever had: those of a directory that is gone must not be taken for new ones.
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
