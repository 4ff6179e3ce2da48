-- settle: apply the moves of an exchange that end leases, in order: of two moves for one lease, the first counts.
-- ARGS     worker_id, endings (as moves.lua returns them), keep_failed
-- RETURNS  nothing
-- COST     O(moves)
-- CRASH    as of each move
-- @include release moves ack decline bury fail again defer
local function settle(worker_id, endings, keep_failed)
  if endings[1] and endings[1].kind ~= KIND.ACK then write_first() end
  for _, ending in ipairs(endings) do
    local kind = ending.kind
    if kind == KIND.ACK then ack(worker_id, ending.ids, ending.never_sent)
    elseif kind == KIND.RELEASE then release(worker_id, ending.id)
    elseif kind == KIND.DECLINE then decline(worker_id, ending.id, ending.reason, ending.label)
    elseif kind == KIND.BURY then bury(worker_id, ending.id, ending.reason)
    elseif kind == KIND.DEFER then defer(worker_id, ending.ids)
    elseif kind == KIND.AGAIN then again(worker_id, ending)
    elseif kind == KIND.FAIL then
      fail(worker_id, ending.id, ending.reason, ending.label, ending.never_sent, keep_failed)
    end
  end
end
