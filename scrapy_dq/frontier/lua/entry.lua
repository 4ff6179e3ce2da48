-- entry: how an entry is written in each place, and how it comes back to its exact place.
-- A place is 16 bytes that sort as the order serves: 8 of rank, 8 of sequence.
--   backlog:<rank>       LIST  sequence(8) id(12) payload            never leased yet
--   in-flight:<worker>   HASH  id -> place(16) flags(1) payload      flags: attempts, +128 in quarantine
--   returned, quarantine ZSET  place(16) id(12) attempts(1) payload  all scores 0: sorted by bytes
local BIAS = 4503599627370496 -- 2^52: makes signed ranks sort as unsigned bytes
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
-- Removes one lease from a worker; false if it does not hold it.
local function take_lease(worker_id, id)
  local record = redis.call('HGET', in_flight_key(worker_id), id)
  if not record then return false end
  redis.call('HDEL', in_flight_key(worker_id), id)
  local flags = string.byte(record, 17)
  if flags >= 128 then redis.call('HSET', worker_key(worker_id), 'quarantined', '') end
  state.in_flight = state.in_flight - 1
  return { place = string.sub(record, 1, 16), attempts = flags % 128, quarantined = flags >= 128,
    payload = string.sub(record, 18) }
end
local function come_back(set, id, lease)
  redis.call('ZADD', set, 0, lease.place .. id .. string.char(lease.attempts) .. lease.payload)
  state.waiting = state.waiting + 1
end
