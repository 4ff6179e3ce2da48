-- offer: declined -> in-flight. Entries that other workers have declined, each of them offered once to each worker.
-- ARGS     worker_id, want, ahead (ms)
-- RETURNS  how many were granted; adds them to grants, as lease.lua does
-- COST     O(want * log declined); O(500) more for entries that this worker itself has declined
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
-- USES     budgets.is_saturated, budgets.is_spent, declined, entry.come_back, entry.split, grants, grants.grant_at,
--          grants.grant_member, keys.key, keys.worker_key, partition.classify, politeness.count_busy,
--          politeness.earliest_of, politeness.limits_of, politeness.set_earliest, state, state.is_there,
--          state.now_ms, types.polite
local function offer(worker_id, want, ahead)
  if want <= 0 or not is_there('declined') then return 0 end
  local got = 0
  local was = redis.call('HGET', worker_key(worker_id), 'offered')
  if not was then return 0 end
  local offered = was
  local waiting = redis.call('ZRANGEBYSCORE', key.declined, '(' .. offered, '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
  for i = 1, #waiting, 2 do
    local partition, member = split(waiting[i], 1)
    local id = string.sub(member, 17, 28)
    if is_spent(partition) then
      -- It waits with the others of its partition: no worker gets any of them in this run, or on this day.
      redis.call('ZREM', key.declined, waiting[i])
      state.waiting = state.waiting - 1
      come_back('returned', id, { partition = partition, place = string.sub(member, 1, 16), payload =
        string.sub(member, 30), attempts = string.byte(member, 29) })
      classify(partition, ahead)
    elseif not declined.by(worker_id, id) then
      if is_saturated(partition) or got >= want or grants.bytes >= grants.max_bytes then break end
      grant_member(key.declined, partition, member, 0)
      got = got + 1
      count_busy(partition, 1)
      -- Without a turn in the rotation: it waits for its time in the worker.
      local delay, start = limits_of(partition), math.max(now_ms(), earliest_of(partition))
      if delay > 0 or start > now_ms() then
        grant_at(#grants.ids, start - now_ms())
        set_earliest(partition, start + delay)
      end
      if state.limited or polite then classify(partition, ahead) end
    end
    offered = waiting[i + 1]
  end
  if offered ~= was then redis.call('HSET', worker_key(worker_id), 'offered', offered) end
  state.waiting, state.in_flight = state.waiting - got, state.in_flight + got
  return got
end
