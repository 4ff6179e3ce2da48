-- grants: the leases of an exchange: stored in in-flight in a few writes, and only then removed from where they waited.
-- USES     bands.granted_of, entry.ELEMENT, entry.MEMBER, entry.MOST_BYTES, entry.holds_suspect, entry.partition_of,
--          entry.whole, keys.in_flight_key, keys.key, keys.worker_key, messages.count_message, messages.head_of,
--          politeness.count_busy, state
local CHUNK = 32 -- leases written at once, and entries read: bounds what is read past max_bytes
local SIGNED, MOVED = '\5', '\6' -- see signing.py: a signature is valid for the id of its entry only
-- ids, and by position: the record in in-flight; when it may be sent, in ms from now (none: at any time).
-- What is not removed yet: by list, how many elements (from its head; negative: from its end), and members of ZSETs.
local grants = { ids = {}, records = {}, waits = {}, bytes = 0, written = 0, elements = {}, members = {} } -- EACH CALL
local function begin_grants(worker_id, max_bytes, nonce)
  grants.worker_id, grants.max_bytes, grants.nonce = worker_id, max_bytes, nonce
end
-- Where the id begins in a record of in-flight (entry.lua).
local function id_in(record) return (string.find(record, '\0', 10, true) or 0) + 9 end
local function payload_in(record) return string.sub(record, id_in(record) + 12) end
-- Somebody else has written an entry under the id of another one. Under one id, both would be settled when one is done:
-- this one gets an id of its own.
local function rename_grant(i)
  local id, record = grants.ids[i], grants.records[i]
  -- By the nonce, which nobody can know before: else, somebody could have written an entry under the new one, too.
  local new = string.sub(redis.sha1hex(record .. grants.nonce), 1, 12)
  local from, payload = id_in(record), payload_in(record)
  local head = head_of(payload)
  payload = string.sub(payload, #head + 1)
  if string.sub(payload, 1, 1) == SIGNED then payload = MOVED .. whole(id, 12) .. payload end
  grants.ids[i], grants.records[i] = new, string.sub(record, 1, from - 1) .. new .. head .. payload
  local partition = partition_of(record)
  if redis.call('HGET', key.unsent, partition) == id then redis.call('HSET', key.unsent, partition, new) end
  if holds_suspect == id then
    redis.call('HSET', worker_key(grants.worker_id), 'quarantined', new)
    holds_suspect = new
  end
end
-- Counts them here: between two writes no count is higher than what is stored. *fed*: they have not waited (claim.lua).
local function write_grants(fed)
  if #grants.ids == grants.written then return end
  local in_flight, fields, written = in_flight_key(grants.worker_id), {}, {}
  local held = redis.call('HMGET', in_flight, unpack(grants.ids, grants.written + 1))
  for i = grants.written + 1, #grants.ids do
    local other = held[i - grants.written] or written[grants.ids[i]]
    if other and payload_in(other) ~= payload_in(grants.records[i]) then rename_grant(i)
    elseif other then
      -- It was forgotten (forget.lua) and put again by a replay log: it is leased and settled once.
      count_busy(partition_of(grants.records[i]), -1)
      count_message(payload_in(grants.records[i]), -1)
    end
    local id, record = grants.ids[i], grants.records[i]
    fields[#fields + 1], fields[#fields + 2] = id, record
    written[id] = record
  end
  local new = redis.call('HSET', in_flight, unpack(fields))
  state.in_flight = state.in_flight + new
  if not fed then state.waiting = state.waiting - #fields / 2 end
  grants.written = #grants.ids
  for list, count in pairs(grants.elements) do
    if count > 0 then redis.call('LTRIM', list, count, -1) else redis.call('LTRIM', list, 0, count - 1) end
  end
  for _, member in ipairs(grants.members) do redis.call('ZREM', member[1], member[2]) end
  grants.elements, grants.members, granted_of = {}, {}, {}
end
local function add_grant(id, record)
  local n = #grants.ids + 1
  local most = #record > MOST_BYTES and math.max(MOST_BYTES, (string.find(record, '\0', 10, true) or 0) + ELEMENT)
  if most then record = string.sub(record, 1, most) end -- see entry.lua
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
  member = whole(member, MEMBER)
  add_grant(string.sub(member, 17, 28), string.sub(member, 1, 8) .. string.char(string.byte(member, 29) % 128 + flag)
    .. partition .. '\0' .. string.sub(member, 9, 28) .. string.sub(member, 30))
  write_many()
end
local function grant_at(position, wait_ms) grants.waits[position], grants.timed = wait_ms, true end
-- Returns what the worker gets: the records, and the time of each, if any has one.
local function granted()
  local waits = {}
  for i = 1, grants.timed and #grants.ids or 0 do waits[i] = grants.waits[i] or '' end
  return grants.records, waits
end
