-- entry: how an entry is written in each place, and how it comes back to its exact place.
-- A place is 16 bytes that sort as the order serves: 8 of rank, 8 of sequence. A partition's name holds no
-- zero byte, so that in a ZSET whose scores are all 0 each partition's members stand together, best first.
--   backlog:<rank>:<partition>  LIST  sequence(8) id(12) payload               never leased yet
--   bands                 HASH  partition -> rank(8)                           its best list
--   more_bands            ZSET  partition 0 rank(8)                            its other lists
--   returned, quarantine  ZSET  partition 0 place(16) id(12) attempts(1) payload
--   delayed               ZSET  id(12) rank(8) partition 0 payload             score: when it falls due, ms
--   in-flight:<worker>    HASH  id -> place(16) flags(1) partition 0 payload   flags: attempts, +128 quarantine
local BIAS = 4503599627370496 -- 2^52: makes signed ranks sort as unsigned bytes
local function rank_bytes(rank) return struct.pack('>I8', rank + BIAS) end
local function unpack_rank(bytes) return struct.unpack('>I8', bytes) - BIAS end
local rank_texts = {}
local function rank_text(rank)
  local text = rank_texts[rank]
  if not text then
    text = string.format('%.0f', rank)
    rank_texts[rank] = text
  end
  return text
end
local function place_of(rank, sequence)
  return struct.pack('>I8I8', rank + BIAS, order_newest_first(rank) and BIAS - sequence or sequence)
end
local function place_before(a, b)
  -- By number: Lua's < on strings follows the locale.
  local a_rank, a_turn = struct.unpack('>I8I8', a)
  local b_rank, b_turn = struct.unpack('>I8I8', b)
  if a_rank ~= b_rank then return a_rank < b_rank end
  return a_turn < b_turn
end
-- Splits what stands from *from* on into partition and payload.
local function split(record, from)
  local stop = string.find(record, '\0', from, true)
  return string.sub(record, from, stop - 1), string.sub(record, stop + 1)
end
-- The best member of a partition in a ZSET that is sorted by bytes, without the partition.
local function first_of(set, partition)
  local member = redis.call('ZRANGEBYLEX', set, '[' .. partition .. '\0', '(' .. partition .. '\1',
    'LIMIT', 0, 1)[1]
  return member and string.sub(member, #partition + 2)
end
-- A list has begun, or is used up: most partitions have one, which costs no search.
local function add_band(partition, rank)
  local band, best = rank_bytes(rank), redis.call('HGET', key.bands, partition)
  if not best or rank < unpack_rank(best) then
    redis.call('HSET', key.bands, partition, band)
    band = best
  end
  if band then redis.call('ZADD', key.more_bands, 0, partition .. '\0' .. band) end
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
-- Removes one lease from a worker; false if it does not hold it.
local function take_lease(worker_id, id)
  local record = redis.call('HGET', in_flight_key(worker_id), id)
  if not record then return false end
  redis.call('HDEL', in_flight_key(worker_id), id)
  local flags = string.byte(record, 17)
  if flags >= 128 then redis.call('HSET', worker_key(worker_id), 'quarantined', '') end
  state.in_flight = state.in_flight - 1
  local partition, payload = split(record, 18)
  lease_ended(partition, id)
  return { place = string.sub(record, 1, 16), attempts = flags % 128, quarantined = flags >= 128,
    partition = partition, payload = payload }
end
local function come_back(set, id, lease)
  redis.call('ZADD', set, 0,
    lease.partition .. '\0' .. lease.place .. id .. string.char(lease.attempts) .. lease.payload)
  state.waiting = state.waiting + 1
  touched[lease.partition] = true
end
