-- settle: apply the moves of an exchange that end leases, in order: of two moves for one lease, the first counts.
-- ARGS     worker_id, endings (as moves.lua returns them), keep_failed
-- RETURNS  nothing
-- COST     O(moves)
-- CRASH    as of each move
-- USES     ack, again, bury, defer, fail, moves.ACK, moves.AGAIN, moves.BURY, moves.DEFER, moves.FAIL, moves.RELEASE,
--          release
local function settle(worker_id, endings, keep_failed)
  for _, ending in ipairs(endings) do
    local kind = ending.kind
    if kind == ACK then ack(worker_id, ending.ids, ending.never_sent)
    elseif kind == RELEASE then release(worker_id, ending.id)
    elseif kind == BURY then bury(worker_id, ending.id, ending.reason)
    elseif kind == DEFER then defer(worker_id, ending.ids)
    elseif kind == AGAIN then again(worker_id, ending)
    elseif kind == FAIL then
      fail(worker_id, ending.id, ending.reason, ending.label, ending.never_sent, keep_failed)
    end
  end
end
