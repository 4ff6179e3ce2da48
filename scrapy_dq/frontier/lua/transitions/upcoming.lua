-- upcoming: copies of the entries that a worker without leases would lease next. Changes nothing.
-- ARGS     count, max_bytes
-- RETURNS  flat: where (rotation | suspects | resting | saturated | delayed), wait_ms (-1: unknown), partition,
--          id, attempts, payload, ...
-- COST     O(count * log partitions), plus one read of the partition heads for each round
-- CRASH    nothing to do
-- USES     bands.list_of, entry.ELEMENT, entry.MEMBER, entry.MOST_BYTES, entry.place_before, entry.read_delayed,
--          entry.unpack_rank, entry.whole, keys.key, order.order_newest_first, state.load_state, state.now_ms
local count, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local flat, left = {}, count
-- The first *most* entries of a partition in the order of serving, from its lists, `returned` and `quarantine`.
local function best_of(partition, most)
  local found = {}
  for _, set in ipairs({ key.returned, key.quarantine }) do
    local at, bytes, from = 0, 0, '[' .. partition .. '\0'
    while at < most and bytes < max_bytes do -- one by one: each may be large
      local member = redis.call('ZRANGEBYLEX', set, from, '(' .. partition .. '\1', 'LIMIT', 0, 1)[1]
      if not member then break end
      local record = whole(string.sub(member, #partition + 2), MEMBER)
      found[#found + 1] = { string.sub(record, 1, 16), string.sub(record, 17, 28), string.byte(record, 29),
        string.sub(record, 30) }
      at, bytes, from = at + 1, bytes + #member, '(' .. member
    end
  end
  local ranks = { redis.call('HGET', key.bands, partition) or nil }
  local others = redis.call('ZRANGEBYLEX', key.more_bands, '[' .. partition .. '\0', '(' .. partition .. '\1',
    'LIMIT', 0, most)
  for _, member in ipairs(others) do ranks[#ranks + 1] = string.sub(member, #partition + 2) end
  local listed, bytes = 0, 0
  for _, band in ipairs(ranks) do
    local rank = unpack_rank(band)
    local newest, at = order_newest_first(rank), 0
    while listed < most and bytes < max_bytes do
      local element = redis.pcall('LINDEX', list_of(rank, partition), newest and -1 - at or at)
      if type(element) ~= 'string' then break end -- end of the list, or a key of another type
      element = whole(element, ELEMENT)
      found[#found + 1] = { band .. string.sub(element, 1, 8), string.sub(element, 9, 20), 0,
        string.sub(element, 21) }
      at, listed, bytes = at + 1, listed + 1, bytes + #element
    end
  end
  table.sort(found, function(a, b) return place_before(a[1], b[1]) end)
  return found
end
local function tell(where, wait_ms, partition, id, attempts, payload)
  payload = string.sub(payload, 1, MOST_BYTES)
  max_bytes, left = max_bytes - #payload, left - 1
  for _, part in ipairs({ where, wait_ms, partition, id, attempts, payload }) do flat[#flat + 1] = part end
end
load_state()
for _, where in ipairs({ 'rotation', 'suspects', 'resting', 'saturated' }) do
  local heads = left > 0 and redis.call('ZRANGE', key[where], 0, left - 1, 'WITHSCORES') or {}
  local told, gained = {}, true
  while gained do -- in rounds, like lease.lua
    gained = false
    for i = 1, #heads, 2 do
      local before = told[i] or 0
      local fair = before + math.ceil(left / ((#heads - i + 1) / 2))
      local best = left > 0 and max_bytes > 0 and best_of(heads[i], fair) or {}
      local wait_ms = where == 'resting' and math.max(0, tonumber(heads[i + 1]) - now_ms())
        or where == 'saturated' and -1 or 0
      for n = before + 1, math.min(fair, #best) do
        if max_bytes > 0 then
          tell(where, wait_ms, heads[i], best[n][2], best[n][3], best[n][4])
          told[i], gained = n, true
        end
      end
    end
  end
end
local at = 0
while left > 0 and max_bytes > 0 do
  local due = redis.call('ZRANGE', key.delayed, at, at, 'WITHSCORES')
  if not due[1] then break end
  local id, _, partition, payload = read_delayed(due[1])
  tell('delayed', math.max(0, tonumber(due[2]) - now_ms()), partition, id, 0, payload)
  at = at + 1
end
return flat
