-- fail: in-flight -> failed. It is counted, and a copy is kept among the newest failed requests.
-- ARGS     worker_id, id, reason, label, never_sent (see moves.lua), keep
-- RETURNS  true | false (not held)
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- @include budgets declined messages
local function fail(worker_id, id, reason, label, never_sent, keep)
  local lease = read_lease(worker_id, id)
  if not lease then return false end
  if keep > 0 then
    redis.call('LPUSH', key.failed, cmsgpack.pack({
      id, label, reason, wall_ms(), worker_id, lease.attempts, lease.place, lease.payload,
      lease.partition,
    }))
  end
  end_lease(worker_id, id, lease)
  declined.forget({ id })
  state.failed = state.failed + 1
  count_spent(lease.partition, never_sent)
  count_message(lease.payload, -1)
  if keep > 0 then redis.call('LTRIM', key.failed, 0, keep - 1) end
  return true
end
