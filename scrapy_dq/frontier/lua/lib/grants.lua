-- grants: the leases of an exchange: stored in in-flight in a few writes.
-- USES     entry.partition_of, keys.in_flight_key, keys.key, messages.count_message, midway, politeness.count_busy,
--          state
local CHUNK = 32 -- leases written at once, and entries popped: bounds what is popped past max_bytes, and pushed back
-- ids, and by position: the record in in-flight; when it may be sent, in ms from now (none: at any time).
local grants = { ids = {}, records = {}, waits = {}, timed = false, bytes = 0, written = 0 } -- EACH CALL
local function begin_grants(worker_id, max_bytes)
  grants.worker_id, grants.max_bytes = worker_id, max_bytes
  midway.grants = grants
end
local function write_grants()
  if #grants.ids == grants.written then return end
  local in_flight, fields, written = in_flight_key(grants.worker_id), {}, {}
  local held = redis.call('HMGET', in_flight, unpack(grants.ids, grants.written + 1))
  for i = grants.written + 1, #grants.ids do
    local id, record = grants.ids[i], grants.records[i]
    if held[i - grants.written] or written[id] then
      -- It was forgotten (forget.lua) and put again by a replay log: it is leased and settled once.
      count_busy(partition_of(record), -1)
      count_message(string.sub(record, string.find(record, '\0', 10, true) + 21), -1)
    end
    fields[#fields + 1], fields[#fields + 2] = id, record
    written[id] = true
  end
  local new = redis.call('HSET', in_flight, unpack(fields))
  state.in_flight = state.in_flight - (#fields / 2 - new)
  grants.written = #grants.ids
end
local function add_grant(id, record)
  local n = #grants.ids + 1
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
