-- grants: the leases of an exchange: stored in in-flight in a few writes.
-- USES     entry.ELEMENT, entry.MEMBER, entry.MOST_BYTES, entry.partition_of, entry.whole, keys.in_flight_key, midway,
--          politeness.count_busy, state
local CHUNK = 32 -- leases written at once, and entries popped: bounds what is popped past max_bytes, and pushed back
-- ids, and by position: the record in in-flight; when it may be sent, in ms from now (none: at any time).
local grants = { ids = {}, records = {}, waits = {}, timed = false, bytes = 0, written = 0 }
local function begin_grants(worker_id, max_bytes)
  grants.worker_id, grants.max_bytes = worker_id, max_bytes
  midway.grants = grants
end
local function write_grants()
  if #grants.ids == grants.written then return end
  local fields, written = {}, {}
  -- An id that was forgotten (forget.lua) and put again by a replay log may occur twice: it is leased and settled once.
  for i = grants.written + 1, #grants.ids do
    local id, record = grants.ids[i], grants.records[i]
    fields[#fields + 1], fields[#fields + 2] = id, record
    if state.limited then
      local twice = written[id] or redis.call('HEXISTS', in_flight_key(grants.worker_id), id) == 1
      if twice then count_busy(partition_of(record), -1) end
      written[id] = true
    end
  end
  local new = redis.call('HSET', in_flight_key(grants.worker_id), unpack(fields))
  state.in_flight = state.in_flight - (#fields / 2 - new)
  grants.written = #grants.ids
end
local function add_grant(id, record)
  local n = #grants.ids + 1
  local most = #record > MOST_BYTES and math.max(MOST_BYTES, (string.find(record, '\0', 10, true) or 0) + ELEMENT)
  if most then record = string.sub(record, 1, most) end -- see entry.lua
  grants.ids[n], grants.records[n] = id, record
  grants.bytes = grants.bytes + #record
  return n
end
local function grant(id, record)
  local n = add_grant(id, record)
  if n - grants.written >= CHUNK then write_grants() end
end
local function grant_member(set, partition, member, flag)
  redis.call('ZREM', set, partition .. '\0' .. member)
  member = whole(member, MEMBER)
  grant(string.sub(member, 17, 28), string.sub(member, 1, 8) .. string.char(string.byte(member, 29) % 128 + flag)
    .. partition .. '\0' .. string.sub(member, 9, 28) .. string.sub(member, 30))
end
local function grant_at(position, wait_ms) grants.waits[position], grants.timed = wait_ms, true end
-- Returns what the worker gets: the records, and the time of each, if any has one.
local function granted()
  local waits = {}
  for i = 1, grants.timed and #grants.ids or 0 do waits[i] = grants.waits[i] or '' end
  return grants.records, waits
end
