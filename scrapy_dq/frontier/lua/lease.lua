-- lease: backlog -> in-flight, best place first. Merges the lists with what came back.
-- ARGS     worker_id, want, max_bytes, quarantined (the worker holds a quarantined entry already)
-- RETURNS  flat array: id, attempts, payload, ...
-- COST     O(want * log bands)
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
local CHUNK = 32 -- entries popped at once: bounds what is popped past max_bytes, and pushed back
local function lease(worker_id, want, max_bytes, quarantined)
  local granted, fields, bytes = {}, {}, 0
  local function grant(id, place, flags, payload)
    fields[#fields + 1] = id
    fields[#fields + 1] = place .. string.char(flags) .. payload
    granted[#granted + 1] = id
    granted[#granted + 1] = flags % 128
    granted[#granted + 1] = payload
    bytes = bytes + #payload
    want = want - 1
    if #fields >= 2 * CHUNK then
      redis.call('HSET', in_flight_key(worker_id), unpack(fields))
      fields = {}
    end
  end
  local function first(set)
    return redis.call('ZRANGE', set, 0, 0)[1]
  end
  local function grant_member(set, member, flag)
    redis.call('ZREM', set, member)
    grant(string.sub(member, 17, 28), string.sub(member, 1, 16), string.byte(member, 29) + flag,
      string.sub(member, 30))
  end
  while want > 0 and bytes < max_bytes do
    local rank = first(key.bands)
    local back = first(key.returned)
    -- One at a time and never two: when its worker dies, the one that died there is charged, no other.
    local suspect = not quarantined and first(key.quarantine)
    local newest = rank and order_newest_first(tonumber(rank))
    local place
    if rank and (back or suspect) then
      local head = redis.call('LINDEX', backlog_key(rank), newest and -1 or 0)
      place = place_of(tonumber(rank), (struct.unpack('>I8', head)))
    end
    if suspect and (not back or place_before(suspect, back))
        and (not rank or place_before(suspect, place)) then
      grant_member(key.quarantine, suspect, 128)
      redis.call('HSET', worker_key(worker_id), 'quarantined', granted[#granted - 2])
      quarantined = true
    elseif back and (not rank or place_before(back, place)) then
      grant_member(key.returned, back, 0)
    elseif rank then
      local count = (back or suspect) and 1 or math.min(want, CHUNK)
      local list = backlog_key(rank)
      local popped, taken = redis.call(newest and 'RPOP' or 'LPOP', list, count), 0
      while taken < #popped and bytes < max_bytes do
        taken = taken + 1
        local element = popped[taken]
        grant(string.sub(element, 9, 20), place_of(tonumber(rank), (struct.unpack('>I8', element))), 0,
          string.sub(element, 21))
      end
      for i = #popped, taken + 1, -1 do
        redis.call(newest and 'RPUSH' or 'LPUSH', list, popped[i])
      end
      if redis.call('EXISTS', list) == 0 then redis.call('ZREM', key.bands, rank) end
    else
      break
    end
  end
  if #fields > 0 then redis.call('HSET', in_flight_key(worker_id), unpack(fields)) end
  local count = #granted / 3
  state.waiting = state.waiting - count
  state.in_flight = state.in_flight + count
  return granted
end
