-- settle: the moves of an exchange that end leases, in their order: of two that end the same, the first one counts.
-- ARGS     worker_id, moves (as exchange.lua has them), keep_failed
-- RETURNS  nothing
-- COST     O(moves)
-- CRASH    as of each move
-- USES     ack, bury, fail, put.PUT, release
local ACK, RELEASE, BURY, FAIL = 2, 3, 4, 5
local function settle(worker_id, moves, keep_failed)
  local acked = {}
  for _, move in ipairs(moves) do
    local kind = move[1]
    if kind == ACK then
      acked[#acked + 1] = move[2]
    elseif kind ~= PUT then
      ack(worker_id, acked)
      acked = {}
      if kind == RELEASE then release(worker_id, move[2])
      elseif kind == BURY then bury(worker_id, move[2], move[3])
      elseif kind == FAIL then fail(worker_id, move[2], move[3], move[4], keep_failed)
      end
    end
  end
  ack(worker_id, acked)
end
