-- ack: in-flight -> gone. Only the worker that holds the lease may ack; ids that it does not hold (reclaimed, or acked
-- before) are ignored.
-- ARGS     worker_id, ids, never_sent (see moves.lua)
-- RETURNS  nothing
-- COST     O(ids)
-- CRASH    before: the entries stay in flight and are reclaimed; after: nothing to do
-- @include budgets declined messages
local function ack(worker_id, ids, never_sent)
  if state.limited or state.claimed > 0 or holds_suspect or is_there('messages') or is_there('decliners') then
    for _, id in ipairs(ids) do
      local lease = read_lease(worker_id, id)
      if lease then end_lease(worker_id, id, lease) end
      -- A claimed start payload is not counted: the requests made from it are.
      if lease and lease.partition ~= CLAIMED then
        state.done = state.done + 1
        count_spent(lease.partition, never_sent)
      end
      if lease then
        count_message(lease.payload, -1)
        declined.forget({ id })
      end
    end
  elseif #ids > 0 then
    -- No count depends on their contents, so they need not be read.
    local acked = redis.call('HDEL', in_flight_key(worker_id), unpack(ids))
    state.in_flight, state.done = state.in_flight - acked, state.done + acked
    if never_sent then state.never_sent = state.never_sent + acked end
  end
end
