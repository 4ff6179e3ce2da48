-- bury: in-flight -> dead letter, kept with its reason for inspection.
-- ARGS     worker_id, id, reason
-- RETURNS  true | false (not held)
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- USES     declined, entry.end_lease, entry.read_lease, keys.MOST_ID, keys.key, messages.count_message,
--          state.now_there, state.wall_ms
local function bury_lease(worker_id, id, lease, reason)
  now_there('dead')
  redis.call('HSET', key.dead, id, cmsgpack.pack({
    reason, wall_ms(), string.sub(worker_id, 1, MOST_ID), lease.attempts, lease.place, lease.payload, lease.partition,
  }))
  end_lease(worker_id, id, lease)
  declined.forget({ id })
  count_message(lease.payload, -1)
end
local function bury(worker_id, id, reason)
  local lease = read_lease(worker_id, id)
  if not lease then return false end
  bury_lease(worker_id, id, lease, reason)
  return true
end
