-- grants: collects the leases of an exchange, and copies their ids to the worker's record, so that a repeat of the
-- exchange gets them again.
-- @include bands messages
-- A script first writes its leases to `in-flight`, many in one command, and only then removes the entries from their
-- former places.
local CHUNK = 32 -- leases per write, and entries per read; a read may exceed max_bytes, so this number is small
-- Fields: ids; records (of each id, as in `in-flight`); waits (of each id: ms from now until its request may be sent;
-- nil: no wait); bytes (of all records); written (how many of these leases are already in `in-flight`).
-- Two fields tell which entries still have to be removed from their former places: elements (list -> how many at its
-- head; a negative number: at its end), and members ({ ZSET, member }, ...).
local grants
each_call(function()
  grants = { ids = {}, records = {}, waits = {}, bytes = 0, written = 0, elements = {}, members = {} }
end)
-- Corrects the counts for an entry that was in two places, because its fingerprint was forgotten (forget.lua) and a
-- replay log has put it again. Both leases have the same id, so they are settled together, and must count once.
local function uncount_repeated(in_flight)
  local held, written = redis.call('HMGET', in_flight, unpack(grants.ids, grants.written + 1)), {}
  for i = grants.written + 1, #grants.ids do
    local id, record = grants.ids[i], grants.records[i]
    if held[i - grants.written] or written[id] then
      count_busy(partition_of(record), -1)
      count_message(string.sub(record, string.find(record, '\0', 10, true) + 21), -1)
    end
    written[id] = true
  end
end
-- Writes the granted leases and changes the counts. The order of these steps makes sure that no count is ever larger
-- than the number of stored entries. *fed*: the entries come from start keys, so they never waited (claim.lua).
local function write_grants(fed)
  if #grants.ids == grants.written then return end
  local in_flight, ids, records, fields, n = in_flight_key(grants.worker_id), grants.ids, grants.records, {}, 0
  for i = grants.written + 1, #ids do
    fields[n + 1], fields[n + 2], n = ids[i], records[i], n + 2
  end
  if state.limited or may_exist('messages') then uncount_repeated(in_flight) end
  local new = redis.call('HSET', in_flight, unpack(fields))
  state.in_flight = state.in_flight + new
  if not fed then state.waiting = state.waiting - #fields / 2 end
  grants.written = #grants.ids
  for list, count in pairs(grants.elements) do
    if count > 0 then redis.call('LTRIM', list, count, '-1') else redis.call('LTRIM', list, '0', count - 1) end
  end
  for _, member in ipairs(grants.members) do redis.call('ZREM', member[1], member[2]) end
  grants.elements, grants.members, granted_of = {}, {}, {}
end
local function add_grant(id, record)
  local n = #grants.ids + 1
  grants.ids[n], grants.records[n] = id, record
  grants.bytes = grants.bytes + #record
  return n
end
local function write_many()
  if #grants.ids - grants.written >= CHUNK then write_grants() end
end
local function grant_member(set, partition, member, flag)
  grants.members[#grants.members + 1] = { set, partition .. '\0' .. member }
  local of = granted_of[set] or {}
  granted_of[set], of[partition] = of, (of[partition] or 0) + 1
  add_grant(string.sub(member, 17, 28), string.sub(member, 1, 8) .. string.char(string.byte(member, 29) % 128 + flag)
    .. partition .. '\0' .. string.sub(member, 9, 28) .. string.sub(member, 30))
  write_many()
end
local function grant_at(position, wait_ms) grants.waits[position], grants.timed = wait_ms, true end
-- Returns the records of all leases for the worker, and the wait of each ('' for no wait). If no lease has a wait, the
-- second list is empty.
local function granted()
  local waits = {}
  for i = 1, grants.timed and #grants.ids or 0 do waits[i] = grants.waits[i] or '' end
  return grants.records, waits
end
-- The worker's record keeps the leases of its last exchange, so that a repeat gets the same leases. Returns them in
-- their stored form: 'i' and the ids; or, if any lease has a time for sending, 't' and for each lease id(12) and
-- time(8; 0: none); or an empty string if there are no leases.
local function remember_grants()
  if #grants.ids == 0 then return '' end
  if not grants.timed then return 'i' .. table.concat(grants.ids) end
  local records = { 't' }
  for i, id in ipairs(grants.ids) do
    records[i + 1] = id .. struct.pack('>I8', grants.waits[i] and now_ms() + grants.waits[i] or 0)
  end
  return table.concat(records)
end
-- Writes the changed fields of the worker's record. *was*: the fields that exchange.lua has read. *settled*: how many
-- requests this exchange has counted as done or failed.
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
end
-- Grants again the leases in *remembered* (from remember_grants()) that are still in flight.
local function repeat_grants(worker_id, remembered)
  local timed = string.sub(remembered, 1, 1) == 't'
  for i = 2, #remembered, timed and 20 or 12 do
    local id = string.sub(remembered, i, i + 11)
    local record = redis.call('HGET', in_flight_key(worker_id), id)
    if record then
      local n = add_grant(id, record)
      local at = timed and struct.unpack('>I8', remembered, i + 12) or 0
      if at > 0 then grant_at(n, at - now_ms()) end
    end
  end
end
