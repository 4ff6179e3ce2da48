-- answer: what the worker's record keeps of its last exchange, so that a repeat of it gets the same answer.
-- Returns 'i' and the ids that were granted; or, if any has a time for sending, 't' and for each id(12) and time(8).
-- @include grants
local function remember_grants()
  if #grants.ids == 0 then return '' end
  if not grants.timed then return 'i' .. table.concat(grants.ids) end
  local records = { 't' }
  for i, id in ipairs(grants.ids) do
    records[i + 1] = id .. struct.pack('>I8', grants.waits[i] and now_ms() + grants.waits[i] or 0)
  end
  return table.concat(records)
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
end
-- Grants again what is still in flight of *remembered*.
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
