-- release: in-flight -> its exact place in the backlog, no attempt charged; an entry that some worker has declined
-- -> declined, so that this worker does not get it again.
-- ARGS     worker_id, id
-- RETURNS  true | false (not held)
-- COST     O(log returned)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- @include declined
local function release(worker_id, id)
  local lease = read_lease(worker_id, id)
  if not lease then return false end
  if declined.of(id) then declined.wait(id, lease)
  else come_back(lease.quarantined and 'quarantine' or 'returned', id, lease) end
  end_lease(worker_id, id, lease)
  return true
end
