-- put: nowhere -> backlog, if its token is new; finished -> open again.
-- ARGS     admission (1 seen, 2 seeds, 3 admitted), token, id, rank, payload
-- RETURNS  true | false (known: nothing changed)
-- COST     O(log bands)
-- CRASH    before: the worker repeats the exchange; after: the token drops the repeat
local admit = {
  seen_add,
  function(token) return redis.call('SADD', key.seeds, token) == 1 end,
  function(token) return redis.call('SADD', key.admitted, token) == 1 end,
}
local function put(admission, token, id, rank, payload)
  -- All that can fail comes before the token: an error after it would make the repeat a known put.
  local element = struct.pack('>I8', state.sequence + 1) .. id .. payload
  if not admit[admission](token) then return false end
  state.sequence = state.sequence + 1
  state.waiting = state.waiting + 1
  state.phase = 'open'
  local length = redis.call('RPUSH', backlog_key(rank), element)
  if length == 1 then redis.call('ZADD', key.bands, rank, rank) end
  return true
end
