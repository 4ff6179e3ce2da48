-- bury: in-flight -> dead letter, kept with its reason for inspection.
-- ARGS     worker_id, id, reason
-- RETURNS  true | false (not held)
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- @include declined messages
local function bury_lease(worker_id, id, lease, reason)
  now_there('dead')
  redis.call('HSET', key.dead, id, cmsgpack.pack({
    reason, wall_ms(), worker_id, lease.attempts, lease.place, lease.payload, lease.partition,
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
