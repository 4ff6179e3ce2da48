-- moves: the moves of an exchange, as frontier/moves.py and wire.py write them. Only this file has the field positions:
--   put      0, id, admission, token, priority, start, payload, partition [, wait_ms, not_before_ms, reason, known_as
--            [, most]]
--   ack      1, id, never_sent (no site got its request, which counts against no budget)
--   release  2, id
--   bury     3, id, reason
--   fail     4, id, reason, label, never_sent
--   defer    5, id
--   again    6, id, next_id, payload, priority, start, wait_ms, never_sent
--   decline  7, id, reason, fingerprint
-- @include orders
local KIND = { PUT = 0, ACK = 1, RELEASE = 2, BURY = 3, FAIL = 4, DEFER = 5, AGAIN = 6, DECLINE = 7 }
-- Returns the fields of a put, as put.lua takes them. To make a table of them would take a tenth of an exchange.
local function fields_of_put(move)
  return move[2], move[3], move[4], order_rank(move[5], move[6]), unpack(move, 7, 13)
end
-- Returns the puts and their positions in the exchange (from 0); and the moves that end leases, in order: tables with
-- ids (of acks, of acks never sent, and of defers, without another kind in between: an ack may follow the defer of its
-- lease, and then comes first or second, with the same result), or with one id, its kind, and the fields of that kind.
local function read_moves(packed)
  local puts, positions, endings, many, n = {}, {}, {}, {}, 0
  for i, move in ipairs(cmsgpack.unpack(packed)) do
    local kind = move[1]
    if kind == KIND.PUT then
      n = n + 1
      puts[n], positions[n] = move, i - 1
    elseif kind == KIND.ACK or kind == KIND.DEFER then
      local group = move[3] and 'never_sent' or kind
      local ids = many[group]
      if not ids then
        ids = {}
        many[group], endings[#endings + 1] = ids, { kind = kind, ids = ids, never_sent = move[3] }
      end
      ids[#ids + 1] = move[2]
    elseif kind == KIND.AGAIN then
      endings[#endings + 1] = { kind = kind, id = move[2], next_id = move[3], payload = move[4],
        rank = order_rank(move[5], move[6]), wait_ms = move[7], never_sent = move[8] }
      many = {}
    else
      endings[#endings + 1] = { kind = kind, id = move[2], reason = move[3], label = move[4], never_sent = move[5] }
      many = {}
    end
  end
  return puts, positions, endings
end
