-- ack: in-flight -> gone. Only the worker that holds the lease may ack.
-- ARGS     worker_id, id
-- RETURNS  true | false (not held: reclaimed, or acked before)
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function ack(worker_id, id)
  local lease = take_lease(worker_id, id)
  if not lease then return false end
  -- A claim only becomes requests: these are what is done.
  if lease.partition ~= CLAIMED then state.done = state.done + 1 end
  return true
end
