-- lease: backlog -> in-flight. A few entries of each partition, the least recently served partition first; partitions
-- of which this worker holds nothing come before the others. With a delay, each lease has a time for sending.
-- ARGS     want, ahead (ms), most (of one partition that is not in here), here (partition -> [held, room] in this
--          worker)
-- RETURNS  nothing; adds to grants: a record of each, and its time (none: no delay, and its sending is not reported)
-- COST     O(want * log partitions); O(500 * log partitions) more if lists are gone
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
-- @include partition serve in_turn
local served -- turn, partition, ...: those that stay in the rotation; written after each round
local fruitless
each_call(function() served, fruitless = {}, 0 end)
-- How many partitions in the rotation had nothing to lease: their lists were evicted or deleted, or they are
-- saturated. Others are looked at instead: else, with many of them, each exchange would meet some and bring nothing.
local LOOKS = 500
local function serve_politely(partition, count, ahead)
  if not polite and not state.limited then
    local got, more = serve(partition, count)
    if got == 0 then fruitless = fruitless + 1 end
    if more then
      served[#served + 1] = next_turn()
      served[#served + 1] = partition
    else
      classify(partition, ahead, true)
    end
    return got
  end
  if is_saturated(partition) then
    fruitless = fruitless + 1
    classify(partition, ahead)
    return 0
  end
  local delay, concurrency, budget = limits_of(partition)
  local start = math.max(now_ms(), earliest_of(partition))
  if start > now_ms() + ahead then count = 0 end
  if concurrency > 0 then count = math.min(count, concurrency - busy_of(partition)) end
  if budget > 0 then count = math.min(count, budget - used_by(partition)) end
  -- A stint: as many as may be sent during one round trip.
  if delay > 0 then count = math.min(count, 1 + math.floor(ahead / delay)) end
  local from = #grants.ids
  local got = serve(partition, count)
  if got == 0 then fruitless = fruitless + 1 end
  if got > 0 and (delay > 0 or start > now_ms()) then
    for i = 1, got do grant_at(from + i, start - now_ms() + (i - 1) * delay) end
    if delay > 0 then
      redis.call('HSET', key.unsent, partition, grants.ids[from + got])
      set_earliest(partition, start + got * delay)
    end
  end
  classify(partition, ahead, true) -- also if it had no entry to lease: its turn is over
  return got
end
-- Returns how many are still wanted.
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
  local known, room, looked = 0, {}, 0
  for _ in pairs(here) do known = known + 1 end
  repeat
    local waiting = in_turn(want + known, here)
    for _, partition in ipairs(waiting) do
      room[partition] = room[partition] or here[partition] and here[partition][2] or most
    end
    fruitless = 0
    want = lease_from(waiting, want, room, ahead)
    looked = looked + fruitless
  until want <= 0 or fruitless == 0 or looked >= LOOKS or grants.bytes >= grants.max_bytes
end
