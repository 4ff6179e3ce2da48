-- serve: the first entries of one partition -> in-flight; its lists are merged with `returned` and `quarantine`.
-- USES     bands.first_of, bands.list_of, bands.remove_best_band, damage.damaged, entry.ELEMENT, entry.holds_suspect,
--          entry.place_before, entry.rank_bytes, entry.unpack_rank, entry.whole, grants, grants.CHUNK, grants.grant,
--          grants.grant_member, keys.key, keys.worker_key, midway.popped, midway.popped_head, midway.popped_taken,
--          order.order_newest_first, politeness.count_busy, put.wrong_list, state, state.is_there
-- Redis 6.2 goes through a list from its head to its end for an RPOP with a count: milliseconds if it is long.
local function pop(list, newest, count)
  if not newest then return redis.call('LPOP', list, count) end
  if redis.REDIS_VERSION_NUM then return redis.call('RPOP', list, count) end
  local elements = {}
  for i = 1, count do
    local element = redis.call('RPOP', list)
    if not element then return i > 1 and elements end
    elements[i] = element
  end
  return elements
end
-- Returns how many were granted, and whether there are more; nothing if there is no list.
local function serve_list(partition, rank, count)
  local list, newest = list_of(rank, partition), order_newest_first(rank)
  local elements = pop(list, newest, math.min(count, CHUNK))
  if not elements then
    damaged('backlog') -- the list was deleted or evicted
    return remove_best_band(partition)
  end
  local head = rank_bytes(rank) .. '\0' .. partition .. '\0'
  local size, taken = #elements, 0
  popped, popped_head, popped_taken = elements, head, 0
  while taken < size and grants.bytes < grants.max_bytes do
    taken = taken + 1
    popped_taken = taken
    local element = elements[taken]
    grant(string.sub(element, 9, 20), head .. element)
  end
  for i = size, taken + 1, -1 do
    redis.call(newest and 'RPUSH' or 'LPUSH', list, elements[i])
    elements[i] = nil
  end
  popped = nil
  local more = size > taken or size == math.min(count, CHUNK) and redis.call('EXISTS', list) == 1
  if not more then remove_best_band(partition) end
  return taken, more
end
-- Grants up to *count* entries of *partition*; returns how many, and true if there are certainly more.
local function serve(partition, count)
  local left, more = count, false
  while left > 0 and grants.bytes < grants.max_bytes do
    local band = redis.call('HGET', key.bands, partition)
    local rank = band and unpack_rank(band)
    local back = is_there('returned') and first_of(key.returned, partition)
    -- A worker leases one suspect at a time: if the worker dies, no other entry is charged an attempt.
    local suspect = is_there('quarantine') and not holds_suspect and first_of(key.quarantine, partition)
    local place
    if rank and (back or suspect) then
      local head = redis.call('LINDEX', list_of(rank, partition), order_newest_first(rank) and -1 or 0)
      if head then
        place = rank_bytes(rank) .. string.sub(head, 1, 8)
      else
        damaged('backlog')
        remove_best_band(partition)
        rank = nil
      end
    end
    if suspect and (not back or place_before(suspect, back)) and (not rank or place_before(suspect, place)) then
      grant_member(key.quarantine, partition, suspect, 128)
      redis.call('HSET', worker_key(grants.worker_id), 'quarantined', grants.ids[#grants.ids])
      holds_suspect = grants.ids[#grants.ids]
      left = left - 1
    elseif back and (not rank or place_before(back, place)) then
      grant_member(key.returned, partition, back, 0)
      left = left - 1
    elseif rank then
      local taken
      taken, more = serve_list(partition, rank, (back or suspect) and 1 or left)
      if not taken then break end
      left = left - taken
    else
      break
    end
  end
  local got = count - left
  count_busy(partition, got)
  state.waiting = state.waiting - got
  state.in_flight = state.in_flight + got
  return got, more
end
