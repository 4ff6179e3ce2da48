-- lease: waiting entries -> in-flight, from the backlog and from the entries that other workers have declined.
-- @include damage grants partition declined
-- Returns the partitions that are served next, in this order, if this worker has room for them. Partitions without a
-- lease of this worker come first.
local function in_turn(count, here)
  local heads = redis.call('ZRANGE', key.rotation, 0, count - 1, 'WITHSCORES')
  local suspect = polite and not holds_suspect and redis.call('ZRANGE', key.suspects, 0, 0, 'WITHSCORES') or {}
  local free, others = {}, {}
  local function enqueue(partition)
    local held_here = here[partition]
    if not held_here then free[#free + 1] = partition
    elseif held_here[2] > 0 then others[#others + 1] = { partition, held_here[1], #others } end
  end
  for i = 1, #heads, 2 do
    if suspect[1] and tonumber(suspect[2]) < tonumber(heads[i + 1]) then
      enqueue(suspect[1])
      suspect = {}
    end
    enqueue(heads[i])
  end
  if suspect[1] then enqueue(suspect[1]) end
  table.sort(others, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[3] < b[3] end)
  for _, other in ipairs(others) do free[#free + 1] = other[1] end
  return free
end
-- serve: the first entries of one partition -> in-flight. It takes entries from the partition's lists, from `returned`
-- and from `quarantine`, in the order of their places.
local serve -- its helpers are in a block, because a script may have only 200 locals
do
  -- Returns the next *count* elements, in the order of the list, after the *skipped* elements that are granted already.
  local function read_list(list, newest, skipped, count, length)
    if not newest then return redis.call('LRANGE', list, skipped, skipped + count - 1) end
    -- For an LRANGE at the end of a list, Redis 6.2 walks through the list from its head, which may take milliseconds.
    if length <= 10000 or redis.REDIS_VERSION_NUM then
      return redis.call('LRANGE', list, -skipped - count, -skipped - 1)
    end
    local elements = {}
    for i = count, 1, -1 do elements[#elements + 1] = redis.call('LINDEX', list, -skipped - i) end
    return elements
  end
  -- Grants up to *count* entries of one list. Returns how many, and whether there are more; nothing if the list is
  -- gone.
  local function serve_list(partition, rank, count)
    local list, newest = list_of(rank, partition), order_newest_first(rank)
    local length, skipped = redis.call('LLEN', list), math.abs(grants.elements[list] or 0)
    local size = math.min(count, CHUNK, length - skipped)
    if size <= 0 then
      damaged('backlog') -- the list was deleted or evicted
      return remove_best_band(partition)
    end
    local elements = read_list(list, newest, skipped, size, length)
    local head, taken = rank_bytes(rank) .. '\0' .. partition .. '\0', 0
    while taken < size and grants.bytes < grants.max_bytes do
      taken = taken + 1
      local element = elements[newest and size + 1 - taken or taken]
      add_grant(string.sub(element, 9, 20), head .. element)
    end
    grants.elements[list] = (grants.elements[list] or 0) + (newest and -taken or taken)
    write_many()
    local more = length > skipped + taken
    if not more then remove_best_band(partition) end
    return taken, more
  end
  -- Grants up to *count* entries of *partition*. Returns how many, and whether more entries certainly wait.
  serve = function(partition, count)
    local left, more = count, false
    while left > 0 and grants.bytes < grants.max_bytes do
      local band = redis.call('HGET', key.bands, partition)
      local rank = band and unpack_rank(band)
      local back = may_exist('returned') and first_of(key.returned, partition)
      -- A worker leases one suspect at a time, so that its death charges an attempt to one entry only.
      local suspect = may_exist('quarantine') and not holds_suspect and first_of(key.quarantine, partition)
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
-- lease: backlog -> in-flight. It takes a few entries of each partition, and begins with the partition that was served
-- longest ago. Partitions without a lease of this worker come first. If a partition has a delay, each of its leases
-- has a time for sending.
-- ARGS     want, ahead (ms), most (how many leases of a partition that the argument `here` does not contain), here
--          (partition -> [held, room]: how many leases of it the worker has, and how many more it can take)
-- RETURNS  nothing; adds the leases to `grants`, with their times for sending, if any (the worker reports when it has
--          sent such a lease)
-- COST     O(want * log partitions); O(500 * log partitions) more if lists are gone
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
local served -- turn, partition, ... of partitions that stay in the rotation; written at the end of each round
local unleasable
each_call(function() served, unleasable = {}, 0 end)
-- `unleasable`: how many partitions in the rotation had nothing to lease, because their lists were evicted or deleted,
-- or because they are saturated. Instead, the script tries up to about MAX_TRIED other partitions. Otherwise an
-- exchange could lease nothing although later partitions have entries.
local MAX_TRIED = 500
local function serve_politely(partition, count, ahead)
  if not polite and not state.limited then
    local got, more = serve(partition, count)
    if got == 0 then unleasable = unleasable + 1 end
    if more then
      served[#served + 1] = next_turn()
      served[#served + 1] = partition
    else
      classify(partition, ahead, true)
    end
    return got
  end
  if is_saturated(partition) then
    unleasable = unleasable + 1
    classify(partition, ahead)
    return 0
  end
  local delay, concurrency, budget = limits_of(partition)
  local start = math.max(now_ms(), earliest_of(partition))
  if start > now_ms() + ahead then count = 0 end
  if concurrency > 0 then count = math.min(count, concurrency - busy_of(partition)) end
  if budget > 0 then count = math.min(count, budget - used_by(partition)) end
  -- With a delay, the worker gets a stint: as many leases as it may send within *ahead* ms.
  if delay > 0 then count = math.min(count, 1 + math.floor(ahead / delay)) end
  local from = #grants.ids
  local got = serve(partition, count)
  if got == 0 then unleasable = unleasable + 1 end
  if got > 0 and (delay > 0 or start > now_ms()) then
    for i = 1, got do grant_at(from + i, start - now_ms() + (i - 1) * delay) end
    if delay > 0 then
      redis.call('HSET', key.unsent, partition, grants.ids[from + got])
      set_earliest(partition, start + got * delay)
    end
  end
  classify(partition, ahead, true) -- the partition's turn is over, even if it had no entry to lease
  return got
end
-- Leases entries of the partitions in *waiting*, in rounds, and returns how many more leases the worker wants.
local function lease_from(waiting, want, room, ahead)
  local gained = 1
  while gained > 0 and want > 0 and grants.bytes < grants.max_bytes do
    gained = 0
    for i, partition in ipairs(waiting) do
      if want <= 0 or grants.bytes >= grants.max_bytes then break end
      local fair = math.min(room[partition], math.ceil(want / (#waiting - i + 1)))
      local got = fair > 0 and serve_politely(partition, fair, ahead) or 0
      room[partition] = got < fair and 0 or room[partition] - got
      want, gained = want - got, gained + got
    end
    if #served > 0 then redis.call('ZADD', key.rotation, unpack(served)) end
    served = {}
  end
  return want
end
local function lease(want, ahead, most, here)
  local known, room, tried = 0, {}, 0
  for _ in pairs(here) do known = known + 1 end
  repeat
    local waiting = in_turn(want + known, here)
    for _, partition in ipairs(waiting) do
      room[partition] = room[partition] or here[partition] and here[partition][2] or most
    end
    unleasable = 0
    want = lease_from(waiting, want, room, ahead)
    tried = tried + unleasable
  until want <= 0 or unleasable == 0 or tried >= MAX_TRIED or grants.bytes >= grants.max_bytes
end
-- offer: declined -> in-flight. Each declined entry is offered once to each worker that has not declined it.
-- ARGS     worker_id, want, ahead, most, here (as in lease)
-- RETURNS  how many entries were granted; adds them to `grants`, as lease() does
-- COST     O(want * log declined); O(500) more for entries that this worker itself has declined
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
local granted_here -- partition -> how many of its entries offer() has granted
each_call(function() granted_here = {} end)
local function offer(worker_id, want, ahead, most, here)
  local was = want > 0 and may_exist('declined') and redis.call('HGET', worker_key(worker_id), 'offered')
  if not was then return 0 end
  local got, offered = 0, was
  local waiting = redis.call('ZRANGEBYSCORE', key.declined, '(' .. was, '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
  for i = 1, #waiting, 2 do
    local partition, member = split(waiting[i], 1)
    local id, suspect = string.sub(member, 17, 28), string.byte(member, 29) >= 128
    if is_spent(partition) then
      -- The partition's budget is spent. The entry waits with the partition's other entries for the next run or day.
      put_back(suspect and 'quarantine' or 'returned', id, { partition = partition,
        place = string.sub(member, 1, 16), attempts = string.byte(member, 29) % 128, payload = string.sub(member, 30) })
      redis.call('ZREM', key.declined, waiting[i])
      state.waiting = state.waiting - 1
      classify(partition, ahead)
    elseif not declined.by(worker_id, id) then
      -- The limits of lease() apply, but the partition needs no turn. If the entry cannot be leased now, stop here, so
      -- that the worker's next exchange begins with it.
      local start, room = math.max(now_ms(), earliest_of(partition)), here[partition] and here[partition][2] or most
      if start > now_ms() + ahead or room <= (granted_here[partition] or 0) or is_saturated(partition)
        or suspect and holds_suspect or got >= want or grants.bytes >= grants.max_bytes then break end
      grant_member(key.declined, partition, member, suspect and 128 or 0)
      got, granted_here[partition] = got + 1, (granted_here[partition] or 0) + 1
      count_busy(partition, 1)
      if suspect then
        redis.call('HSET', worker_key(worker_id), 'quarantined', id)
        holds_suspect = id
      end
      local delay = limits_of(partition)
      if delay > 0 or start > now_ms() then grant_at(#grants.ids, start - now_ms()) end
      if delay > 0 then
        redis.call('HSET', key.unsent, partition, id)
        set_earliest(partition, start + delay)
      end
      if state.limited or polite then classify(partition, ahead) end
    end
    offered = waiting[i + 1]
  end
  write_grants() -- before the entries count as offered
  if offered ~= was then redis.call('HSET', worker_key(worker_id), 'offered', offered) end
  return got
end
