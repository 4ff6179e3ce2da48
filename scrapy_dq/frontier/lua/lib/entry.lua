-- entry: reads and writes the stored form of an entry in each key, and returns an entry to its exact place.
-- A place has 16 bytes, 8 for the rank and 8 for the entry's turn (a partition's turn is something else). The entry's
-- turn is its sequence, or a large number minus the sequence if the newest entry comes first. So places sort in the
-- order of serving.
-- A partition's name contains no zero byte. So in a ZSET whose scores are all 0, the members of a partition are
-- adjacent, and the first one has the best place. Lua takes long to create strings. So the element of a list becomes,
-- unchanged, the end of the in-flight record.
--   backlog:<rank>:<partition>  LIST  turn(8) id(12) payload                   never leased yet
--   bands                 HASH  partition -> rank(8)                           of its best list
--   more_bands            ZSET  partition 0 rank(8)                            of its other lists
--   returned, quarantine  ZSET  partition 0 place(16) id(12) attempts(1) payload
--   declined              ZSET  like `returned`; attempts +128 for a suspect; score: its number (declined.lua)
--   decliners             HASH  id -> msgpack: reason, worker, fingerprint or empty, the workers that declined it, ...
--   accused               HASH  id -> worker: see drain.lua
--   delayed               ZSET  id(12) rank(8) partition 0 payload             score: when it is due, ms
--   in-flight:<worker>    HASH  id -> rank(8) flags(1) partition 0 turn(8) id(12) payload; flags: attempts,
--                                     +128 if leased from quarantine; with DEFERRED before the partition, the lease
--                                     is deferred (endings.lua)
-- @include orders politeness
local rank_texts
-- The id of the suspect that this worker holds. true: the worker must not get a suspect now (exchange.lua). false or
-- nil: it holds no suspect.
local holds_suspect
each_call(function() rank_texts, holds_suspect = {}, nil end)
local BIAS = 4503599627370496 -- 2^52, added to ranks, because negative numbers would not sort as bytes
local function rank_bytes(rank) return struct.pack('>I8', rank + BIAS) end
local function rank_text(rank)
  local text = rank_texts[rank]
  if not text then
    text = string.format('%.0f', rank)
    rank_texts[rank] = text
  end
  return text
end
local function turn_bytes(rank, sequence)
  return struct.pack('>I8', order_newest_first(rank) and BIAS - sequence or sequence)
end
local ELEMENT, MEMBER = 20, 29 -- bytes before the payload of a list element; of a member of returned or quarantine
local function unpack_rank(bytes) return struct.unpack('>I8', bytes) - BIAS end
local function place_before(a, b)
  -- Compare numbers, because Lua compares strings by the rules of the locale.
  local a_rank, a_turn = struct.unpack('>I8I8', a)
  local b_rank, b_turn = struct.unpack('>I8I8', b)
  if a_rank ~= b_rank then return a_rank < b_rank end
  return a_turn < b_turn
end
-- Splits a record from position *from* on into partition and payload.
local function split(record, from)
  local stop = string.find(record, '\0', from, true)
  return string.sub(record, from, stop - 1), string.sub(record, stop + 1)
end
-- Splits a member of delayed into id, rank, partition and payload.
local function read_delayed(member)
  return string.sub(member, 1, 12), unpack_rank(string.sub(member, 13, 20)), split(member, 21)
end
local function partition_of(record) return string.sub(record, 10, string.find(record, '\0', 10, true) - 1) end
-- Returns one lease of a worker; false if the worker does not hold it. A move must first store the entry in its next
-- place and then end the lease. If the script is stopped in between, the entry is not lost.
local function read_lease(worker_id, id)
  local record = redis.call('HGET', in_flight_key(worker_id), id)
  if not record then return false end
  local partition, element = split(record, 10)
  local flags, deferred = string.byte(record, 9), string.sub(partition, 1, 1) == DEFERRED
  return { place = string.sub(record, 1, 8) .. string.sub(element, 1, 8), payload = string.sub(element, 21),
    partition = deferred and string.sub(partition, 2) or partition, deferred = deferred,
    attempts = flags % 128, quarantined = flags >= 128, suspect = flags >= 128 }
end
local function end_lease(worker_id, id, lease)
  redis.call('HDEL', in_flight_key(worker_id), id)
  state.in_flight = state.in_flight - 1
  -- The second condition is for an entry that was in two places (grants.lua): the record of its other lease has
  -- replaced the record of the suspect.
  if lease.suspect or holds_suspect == id then
    redis.call('HSET', worker_key(worker_id), 'quarantined', '')
    holds_suspect = false
  end
  lease_ended((lease.deferred and DEFERRED or '') .. lease.partition, id)
end
local function put_back(set, id, lease, score)
  local added = redis.call('ZADD', key[set], score or 0,
    lease.partition .. '\0' .. lease.place .. id .. string.char(lease.attempts) .. lease.payload)
  note_added(set)
  if lease.partition == CLAIMED then state.claimed = 1 end -- it may be a retry in a run that has claimed nothing yet
  state.waiting = state.waiting + added
  touched[lease.partition] = true
end
