-- samples: stores the history of a crawl, so that curves can be drawn. The list `samples` gets a sample about every
-- 10 s. The list `minutes` gets every sixth of these samples, and a last one when the last worker leaves. As with the
-- journal, nothing depends on these lists, and no script fails if it cannot write them.
-- Each element is a byte with the value 1 (the format's version) and 16 numbers. Each byte of a number holds 7 of its
-- bits, lowest first; 128 is added to all bytes of a number except the last. (msgpack would need a third more bytes.)
-- The numbers are: run, second (since 1970, Redis's clock), hundredths, done, failed, dead, waiting, delayed,
-- in_flight, workers, seen, memory (KiB of this Redis; 0: unknown), and four sums of all workers since the run began:
-- exchanges, ms until their answers, errors, ms of outages.
-- `meta.sampled` has 7 numbers: the time of the last sample (ms), the number of samples, the four sums, and when a
-- worker last noted an outage (ms).
-- @include journal
local EVERY_MS = 9500
local SAMPLED = '^' .. string.rep('(%d+) ', 6) .. '(%d+)$'
-- How many elements each list keeps. With these numbers, the history of a crawl of millions of pages takes less than
-- 256 KiB.
local MAX_KEPT = { samples = 1080, minutes = 2880 }
local function sampled()
  local found = { string.match(redis.call('HGET', key.meta, 'sampled') or '', SAMPLED) }
  for i = 1, 7 do found[i] = tonumber(found[i] or 0) end
  return found
end
local function save_sampled(found)
  for i = 1, 7 do found[i] = string.format('%.0f', found[i]) end
  redis.pcall('HSET', key.meta, 'sampled', table.concat(found, ' '))
end
local function pack_numbers(...)
  local packed = { '\1' }
  for _, number in ipairs({ ... }) do
    while number >= 128 do
      packed[#packed + 1] = string.char(128 + number % 128)
      number = math.floor(number / 128)
    end
    packed[#packed + 1] = string.char(number)
  end
  return table.concat(packed)
end
local function add_sample(name, packed)
  redis.pcall('RPUSH', key[name], packed)
  redis.pcall('LTRIM', key[name], -MAX_KEPT[name], -1)
end
-- Takes a sample, and updates *found* (from sampled()), if the previous sample is old enough or the clock was set back.
-- *last*: the last worker is leaving, so a sample is taken in any case: it ends the curves.
local function sample(found, last)
  local at = wall_ms()
  local age = at - found[1] -- below 0: Redis's clock was set back
  if age >= 0 and age < EVERY_MS and not last then return end
  found[1], found[2] = at, found[2] + 1
  local dead, info = redis.pcall('HLEN', key.dead), redis.pcall('INFO', 'memory')
  local memory = type(info) == 'string' and string.match(info, 'used_memory:(%d+)') or 0
  local counts = { state.done, state.failed, type(dead) == 'number' and dead or 0, state.waiting, state.delayed,
    state.in_flight, state.members, state.seen, math.floor(memory / 1024), unpack(found, 3, 6) }
  for i, count in ipairs(counts) do counts[i] = math.max(0, count) end
  local packed = pack_numbers(state.run, math.floor(at / 1000), math.floor(at % 1000 / 10), unpack(counts))
  add_sample('samples', packed)
  if last or found[2] % 6 == 1 then add_sample('minutes', packed) end
end
