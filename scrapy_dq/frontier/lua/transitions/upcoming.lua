-- upcoming: returns copies of the entries that a worker without leases would lease next. Changes nothing.
-- ARGS     count, max_bytes
-- RETURNS  flat: where (rotation | suspects | resting | saturated | delayed), wait_ms (-1: unknown), partition,
--          id, attempts, payload, ...
-- COST     O(count * log partitions): about 10 commands for each entry, and for each partition without an entry
-- CRASH    nothing to do
-- @include bands
local count, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
-- room: how many bytes to read at most. It is larger than max_bytes, because some entries are read but not returned.
local flat, left, room = {}, count, 4 * max_bytes
-- Returns a function. Each call of the function returns the next entry of a partition, in the order of serving; nil: no
-- entry is left. An entry may be large, so it is read only once, when the caller asks for it.
local function entries_of(partition)
  local first, last = '[' .. partition .. '\0', '(' .. partition .. '\1'
  local function next_member(set, from) return redis.call('ZRANGEBYLEX', set, from, last, 'LIMIT', 0, 1)[1] end
  local function members_of(set)
    local from = first
    return function()
      local member = next_member(set, from)
      if not member then return end
      from, room = '(' .. member, room - #member
      local record = string.sub(member, #partition + 2)
      return { string.sub(record, 1, 16), string.sub(record, 17, 28), string.byte(record, 29), string.sub(record, 30) }
    end
  end
  local band, at, from = redis.call('HGET', key.bands, partition), 0, first
  local function next_band()
    local member = next_member(key.more_bands, from)
    band, at, from = member and string.sub(member, #partition + 2), 0, member and '(' .. member
  end
  local function next_listed()
    if not band and from == first then next_band() end
    while band do
      local rank = unpack_rank(band)
      local element = redis.call('LINDEX', list_of(rank, partition), order_newest_first(rank) and -1 - at or at)
      if element then
        at, room = at + 1, room - #element
        return { band .. string.sub(element, 1, 8), string.sub(element, 9, 20), 0, string.sub(element, 21) }
      end
      next_band()
    end
  end
  local sources, read = { members_of(key.returned), members_of(key.quarantine), next_listed }, {}
  return function()
    local best
    for i, source in ipairs(sources) do
      if read[i] == nil then read[i] = source() or false end
      if read[i] and (not best or place_before(read[i][1], read[best][1])) then best = i end
    end
    local entry = read[best]
    read[best or 0] = nil
    return entry
  end
end
local function send_command(where, wait_ms, partition, id, attempts, payload)
  max_bytes, left = max_bytes - #payload, left - 1
  for _, part in ipairs({ where, wait_ms, partition, id, attempts, payload }) do flat[#flat + 1] = part end
end
load_state()
for _, where in ipairs({ 'rotation', 'suspects', 'resting', 'saturated' }) do
  local heads, waiting = left > 0 and redis.call('ZRANGE', key[where], 0, left - 1, 'WITHSCORES') or {}, {}
  for i = 1, #heads, 2 do
    local wait_ms = where == 'resting' and math.max(0, tonumber(heads[i + 1]) - now_ms())
      or where == 'saturated' and -1 or 0
    waiting[#waiting + 1] = { partition = heads[i], wait_ms = wait_ms, left = (#heads - i + 1) / 2 }
  end
  while waiting[1] and left > 0 and max_bytes > 0 and room > 0 do -- in rounds, like lease.lua
    local others = {}
    for _, head in ipairs(waiting) do
      local fair, more = math.ceil(left / head.left), true
      head.next_entry = head.next_entry or fair > 0 and entries_of(head.partition)
      while more and fair > 0 and max_bytes > 0 and room > 0 do
        more, fair = head.next_entry(), fair - 1
        if more then send_command(where, head.wait_ms, head.partition, more[2], more[3], more[4]) end
      end
      if more then others[#others + 1] = head end
    end
    waiting = others
  end
end
for at = 0, left - 1 do
  local due = max_bytes > 0 and redis.call('ZRANGE', key.delayed, at, at, 'WITHSCORES') or {}
  if not due[1] then break end
  local id, _, partition, payload = read_delayed(due[1])
  send_command('delayed', math.max(0, tonumber(due[2]) - now_ms()), partition, id, 0, payload)
end
return flat
