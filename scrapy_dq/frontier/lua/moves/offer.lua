-- offer: declined -> in-flight. Entries that other workers have declined, each of them offered once to each worker.
-- ARGS     worker_id, want, ahead, most, here (as of lease.lua)
-- RETURNS  how many were granted; adds them to grants, as lease.lua does
-- COST     O(want * log declined); O(500) more for entries that this worker itself has declined
-- CRASH    before: nothing; after, reply lost: the repeat gets the same leases from in-flight
-- @include partition declined grants
local granted_here -- by partition, how many were granted
each_call(function() granted_here = {} end)
local function offer(worker_id, want, ahead, most, here)
  local was = want > 0 and is_there('declined') and redis.call('HGET', worker_key(worker_id), 'offered')
  if not was then return 0 end
  local got, offered = 0, was
  local waiting = redis.call('ZRANGEBYSCORE', key.declined, '(' .. was, '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
  for i = 1, #waiting, 2 do
    local partition, member = split(waiting[i], 1)
    local id, suspect = string.sub(member, 17, 28), string.byte(member, 29) >= 128
    if is_spent(partition) then
      -- It waits with the others of its partition: no worker gets any of them in this run, or on this day.
      come_back(suspect and 'quarantine' or 'returned', id, { partition = partition,
        place = string.sub(member, 1, 16), attempts = string.byte(member, 29) % 128, payload = string.sub(member, 30) })
      redis.call('ZREM', key.declined, waiting[i])
      state.waiting = state.waiting - 1
      classify(partition, ahead)
    elseif not declined.by(worker_id, id) then
      -- As in lease.lua, but without a turn in the rotation. An entry that cannot be leased now stays the next one.
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
  write_grants() -- before it counts as offered
  if offered ~= was then redis.call('HSET', worker_key(worker_id), 'offered', offered) end
  return got
end
