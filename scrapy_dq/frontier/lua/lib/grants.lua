-- grants: the leases of an exchange: stored in in-flight in a few writes, and remembered for a repeat.
-- USES     entry.ELEMENT, entry.MEMBER, entry.MOST_BYTES, entry.partition_of, entry.whole, keys.in_flight_key,
--          keys.worker_key, midway, politeness.count_busy, state, state.now_ms, state.there
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
local function grant(id, record)
  local n = #grants.ids + 1
  local most = #record > MOST_BYTES and math.max(MOST_BYTES, (string.find(record, '\0', 10, true) or 0) + ELEMENT)
  if most then record = string.sub(record, 1, most) end -- see entry.lua
  grants.ids[n], grants.records[n] = id, record
  grants.bytes = grants.bytes + #record
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
-- Returns what a repeat of this exchange needs to get the same answer: 'i' and the ids; or, if any has a time for
-- sending, 't' and for each id(12) and time(8).
local function remember_grants()
  if #grants.ids == 0 then return '' end
  if not grants.timed then return 'i' .. table.concat(grants.ids) end
  local records = { 't' }
  for i, id in ipairs(grants.ids) do
    records[i + 1] = id .. struct.pack('>I8', grants.waits[i] and now_ms() + grants.waits[i] or 0)
  end
  return table.concat(records)
end
-- Whether this exchange was stopped midway, and the number in flight is still the one that mend.lua has stored.
local function is_mended(worker_id, seq)
  return redis.call('HGET', worker_key(worker_id), 'mended') == string.format('%.0f %.0f', seq, there.in_flight)
end
-- Writes the changed fields of the worker's record; *was*: the record as exchange.lua reads it.
local function remember(worker_id, was, seq, seeding, dropped, settled)
  local changed = { 'last_seq', seq }
  local function set(field, before, now)
    if before ~= now then
      changed[#changed + 1] = field
      changed[#changed + 1] = now
    end
  end
  set('seeding', was[7], seeding)
  set('dropped', was[4], dropped)
  set('leases', was[5], remember_grants())
  if settled > 0 then set('done', nil, (tonumber(was[6]) or 0) + settled) end
  redis.call('HSET', worker_key(worker_id), unpack(changed))
  midway.remembered = true
end
local function repeat_grants(worker_id, remembered)
  local timed = string.sub(remembered, 1, 1) == 't'
  for i = 2, #remembered - (timed and 19 or 11), timed and 20 or 12 do -- ignores an incomplete last item
    local id = string.sub(remembered, i, i + 11)
    local record = redis.call('HGET', in_flight_key(worker_id), id)
    if record then
      local n = #grants.ids + 1
      grants.ids[n], grants.records[n] = id, record
      local at = timed and struct.unpack('>I8', remembered, i + 12) or 0
      if at > 0 then grant_at(n, at - now_ms()) end
    end
  end
end
