-- grants: what an exchange leases: put in flight in a few writes, and remembered for a repeat of it.
local CHUNK = 32 -- leases written at once, and entries popped: bounds what is popped past max_bytes, and pushed back
local grants = { flat = {}, fields = {}, bytes = 0 } -- flat: id, attempts, payload, partition, wait_ms, ...
local function begin_grants(worker_id, max_bytes)
  grants.worker_id, grants.max_bytes = worker_id, max_bytes
  grants.quarantined = redis.call('HGET', worker_key(worker_id), 'quarantined') ~= '' -- it holds a suspect already
end
local function write_grants()
  if #grants.fields > 0 then redis.call('HSET', in_flight_key(grants.worker_id), unpack(grants.fields)) end
  grants.fields = {}
end
local function grant(id, place, flags, partition, payload)
  local fields, flat = grants.fields, grants.flat
  fields[#fields + 1] = id
  fields[#fields + 1] = place .. string.char(flags) .. partition .. '\0' .. payload
  local n = #flat
  flat[n + 1], flat[n + 2], flat[n + 3], flat[n + 4], flat[n + 5] = id, flags % 128, payload, partition, ''
  grants.bytes = grants.bytes + #payload
  if #fields >= 2 * CHUNK then write_grants() end
end
local function grant_member(set, partition, member, flag)
  redis.call('ZREM', set, partition .. '\0' .. member)
  grant(string.sub(member, 17, 28), string.sub(member, 1, 16), string.byte(member, 29) + flag, partition,
    string.sub(member, 30))
end
-- What a repeat of this exchange needs to get the same answer: of each lease, id(12) and send time(8).
local function remember_grants()
  local records, flat = {}, grants.flat
  for i = 1, #flat, 5 do
    records[#records + 1] = flat[i] .. struct.pack('>I8', flat[i + 4] == '' and 0 or now_ms() + flat[i + 4])
  end
  return table.concat(records)
end
local function repeat_grants(worker_id, records)
  local flat = {}
  for i = 1, #records, 20 do
    local id, at = string.sub(records, i, i + 11), (struct.unpack('>I8', records, i + 12))
    local record = redis.call('HGET', in_flight_key(worker_id), id)
    if record then
      local partition, payload = split(record, 18)
      local n = #flat
      flat[n + 1], flat[n + 2], flat[n + 3], flat[n + 4] = id, string.byte(record, 17) % 128, payload, partition
      flat[n + 5] = at == 0 and '' or at - now_ms()
    end
  end
  return flat
end
