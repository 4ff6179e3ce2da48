-- put: new entry -> backlog, delayed, or dead letter, if its token is new; finished -> open again.
-- ARGS     id, admission (the key of the token: 1 seen, 2 seeds, 3 admitted), token, rank, payload, partition, wait_ms
--          (nil: not given, like all arguments after it), not_before_ms (a time of Redis's clock; 0: none), reason (why
--          no worker can serve the request; false: it can be served), known_as (the request's fingerprint in `adopted`;
--          false: none), most (with admission 3: refuse the put if so many entries wait or are delayed; nil: no limit)
-- RETURNS  nil (stored) | KNOWN (a duplicate) | FULL (refused because of *most*); KNOWN and FULL: nothing has changed
-- COST     O(log partitions)
-- CRASH    before: the worker repeats the exchange; after: the token makes the repeat a duplicate
-- @include kinds bands messages
local KNOWN, FULL = 1, 2
local admit = {
  function(token) return seen().add(token) end,
  function(token) return redis.call('SADD', key.seeds, token) == 1 end,
  function(token) return redis.call('SADD', key.admitted, token) == 1 end,
}
local function append(id, rank, partition, payload)
  state.sequence = state.sequence + 1
  local element = turn_bytes(rank, state.sequence) .. id .. payload
  local length = redis.call('RPUSH', list_of(rank, partition), element)
  state.waiting = state.waiting + 1 -- after RPUSH, so that no audit reports an entry as gone that was never stored
  adding = nil
  if length == 1 then
    add_band(partition, rank)
    touched[partition] = true
  end
end
local function put(id, admission, token, rank, payload, partition, wait_ms, not_before_ms, reason, known_as, most)
  -- All steps that can fail come before the token is stored. After a later error, the repeat would be dropped as a
  -- duplicate.
  local due_ms, delayed = 0, nil
  if wait_ms then
    local after_wait = wait_ms > 0 and now_ms() + wait_ms or 0
    due_ms = math.max(after_wait, not_before_ms > 0 and not_before_ms + state.offset or 0)
    delayed = due_ms > now_ms() and id .. rank_bytes(rank) .. partition .. '\0' .. payload
  end
  if known_as and redis.call('SISMEMBER', key.adopted, known_as) == 1 then return KNOWN end
  if most and state.waiting + redis.call('ZCARD', key.delayed) >= most then
    -- The repeat of a stored put is a duplicate and is not refused.
    return redis.call('SISMEMBER', key.admitted, token) == 1 and KNOWN or FULL
  end
  if not admit[admission](token) then return KNOWN end
  adding, adding_to = token, admission -- until the entry is stored
  if state.stored_phase ~= 'open' then open_run() end
  if reason then
    local place = rank_bytes(rank) .. turn_bytes(rank, state.sequence)
    redis.call('HSET', key.dead, id,
      cmsgpack.pack({ reason, wall_ms(), '', 0, place, payload, partition }))
    adding = nil
    note_added('dead')
    return
  end
  if delayed then
    -- If the fingerprint was forgotten (forget.lua) and a replay log repeats this put, `delayed` has the entry already.
    state.sequence = state.sequence + 1 -- like every new entry: see Census.version
    local added = redis.call('ZADD', key.delayed, due_ms, delayed)
    state.delayed, adding = state.delayed + added, nil
    note_added('delayed')
    count_message(payload, added)
  else
    append(id, rank, partition, payload)
    count_message(payload, 1)
  end
end
-- Removes tokens (concatenated ids of 12 bytes) of puts that no worker will repeat. Otherwise an endless crawl would
-- keep all tokens.
local function forget(tokens)
  local admitted = {}
  for i = 1, #tokens, 12 do admitted[#admitted + 1] = string.sub(tokens, i, i + 11) end
  if admitted[1] then redis.call('SREM', key.admitted, unpack(admitted)) end
end
