-- claim: start payloads (start_keys in order) -> in-flight; finished -> open again. Each becomes an entry; if it is
-- released or reclaimed, it waits in a separate partition. Its worker makes requests from it, puts them, and then acks
-- it. A message of a stream stays there, pending (streams.lua).
-- ARGS     want, kind (list: from its head; set; zset: highest score first; stream: oldest first), mark (first bytes of
--          the entry's payload), id_stem (8 random bytes)
-- RETURNS  nothing; adds to grants, like a lease
-- COST     O(want), of a zset O(want * log members)
-- CRASH    before: the payload stays in its key; after: it is in flight, and is reclaimed like any lease
-- @include grants streams
local wrong_key -- a start key of another type than the settings say: name, actual, expected
each_call(function() wrong_key = {} end)
local CLAIMED_HEAD = struct.pack('>I8', 0) .. '\0' .. CLAIMED .. '\0'
local READ = { list = { 'LINDEX', 0 }, set = { 'SRANDMEMBER' }, zset = { 'ZREVRANGE', 0, 0 } }
local REMOVE = { set = 'SREM', zset = 'ZREM' }
-- Returns the next payload, or some; none: the key is empty, or has another type.
local function taken(name, kind, mark, is_first)
  local reply
  if kind == 'stream' then reply = read_stream(name, mark, is_first)
  else reply = redis.pcall(READ[kind][1], name, unpack(READ[kind], 2)) end
  if type(reply) == 'table' and reply.err then
    -- The type is read only after an error: most keys have the right one.
    local actual = redis.call('TYPE', name).ok
    if actual == kind then error(reply.err, 0) end
    wrong_key = { name, actual, kind }
    return {}
  end
  if kind == 'stream' then return reply end
  local payload = reply
  if type(reply) == 'table' then payload = reply[1] end
  return payload and { mark .. payload } or {}
end
local function claim(want, kind, mark, id_stem)
  local claimed = 0
  write_grants()
  for _, name in ipairs(start_keys) do
    local payloads
    repeat
      payloads = claimed < want and grants.bytes < grants.max_bytes and taken(name, kind, mark, not payloads) or {}
      for _, payload in ipairs(payloads) do
        state.sequence = state.sequence + 1
        -- The sequence makes it unique: a repeat of an exchange stopped midway has the same stem. And the payload
        -- does: after a roll-back, a late copy may claim another one while its worker is busy with the first.
        local stem = string.sub(redis.sha1hex(id_stem .. payload), 1, 8)
        local id = stem .. struct.pack('>I4', state.sequence % 4294967296)
        open_run() -- with a put that is known, it was finished
        add_grant(id, CLAIMED_HEAD .. struct.pack('>I8', state.sequence) .. id .. payload)
        write_grants(true)
        claimed, state.claimed = claimed + 1, 1
        if kind == 'stream' then count_message(payload, 1)
        elseif kind == 'list' then redis.call('LPOP', name)
        else redis.call(REMOVE[kind], name, string.sub(payload, #mark + 1)) end
      end
    until not payloads[1]
  end
  count_busy(CLAIMED, claimed)
end
