-- decline: in-flight -> declined. The code of this worker cannot serve the entry; the others are offered it.
-- ARGS     worker_id, id, reason, fingerprint (of the request; empty: none)
-- RETURNS  true | false (not held)
-- COST     O(log declined + workers that have declined it)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- @include declined
local function decline(worker_id, id, reason, fingerprint)
  local lease = read_lease(worker_id, id)
  if not lease then return false end
  declined.note(worker_id, id, reason, fingerprint)
  declined.wait(id, lease)
  end_lease(worker_id, id, lease)
  return true
end
