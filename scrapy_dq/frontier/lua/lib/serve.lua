-- serve: the first entries of one partition -> in-flight; its lists are merged with `returned` and `quarantine`.
-- @include damage grants
local serve -- the rest is hidden: a script may have 200 locals
do
  -- Returns up to *count* elements that are served next, behind the first *skipped*, in the order of the list.
  local function read_list(list, newest, skipped, count)
    if not newest then return redis.call('LRANGE', list, skipped, skipped + count - 1) end
    -- Redis 6.2 goes through a list from its head for an LRANGE at its end: milliseconds if it is long.
    local length = redis.REDIS_VERSION_NUM and 0 or redis.call('LLEN', list)
    if length <= 10000 then return redis.call('LRANGE', list, -skipped - count, -skipped - 1) end
    local elements = {}
    for i = math.min(count, length - skipped), 1, -1 do
      elements[#elements + 1] = redis.call('LINDEX', list, -skipped - i)
    end
    return elements
  end
  -- Returns how many were granted, and whether there are more; nothing if there is no list.
  local function serve_list(partition, rank, count)
    local list, newest = list_of(rank, partition), order_newest_first(rank)
    count = math.min(count, CHUNK)
    local elements = read_list(list, newest, math.abs(grants.elements[list] or 0), count + 1)
    if not elements[1] then
      damaged('backlog') -- the list was deleted or evicted
      return remove_best_band(partition)
    end
    local head = rank_bytes(rank) .. '\0' .. partition .. '\0'
    local size, most, taken = #elements, math.min(#elements, count), 0
    while taken < most and grants.bytes < grants.max_bytes do
      taken = taken + 1
      local element = elements[newest and size + 1 - taken or taken]
      add_grant(string.sub(element, 9, 20), head .. element)
    end
    grants.elements[list] = (grants.elements[list] or 0) + (newest and -taken or taken)
    write_many()
    if size == taken then remove_best_band(partition) end
    return taken, size > taken
  end
  -- Grants up to *count* entries of *partition*; returns how many, and true if there are certainly more.
  serve = function(partition, count)
    local left, more = count, false
    while left > 0 and grants.bytes < grants.max_bytes do
      local band = redis.call('HGET', key.bands, partition)
      local rank = band and unpack_rank(band)
      local back = is_there('returned') and first_of(key.returned, partition)
      -- A worker leases one suspect at a time: if the worker dies, no other entry is charged an attempt.
      local suspect = is_there('quarantine') and not holds_suspect and first_of(key.quarantine, partition)
      local place
      if rank and (back or suspect) then
        local list = list_of(rank, partition)
        local skipped = grants.elements[list] or 0
        local head = redis.call('LINDEX', list, order_newest_first(rank) and skipped - 1 or skipped)
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
    return got, more
  end
end
