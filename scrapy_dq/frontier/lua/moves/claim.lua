-- claim: leases start payloads from start keys. A start key may be a stream.
-- @include grants
-- A script reads start payloads from a stream through a consumer group. A message is pending in the stream until
-- messages.lua acknowledges it. A pending message is read again in two cases: another consumer of the group has died;
-- or the crawl was cleared or rolled back, and does not know the message any more.
local read_stream
do
  -- A message that was idle for IDLE_MS may be taken from its consumer. An exchange takes at most MAX_IDLE such
  -- messages of a stream. When the search has reached the last pending message, it starts from the first one again,
  -- PAUSE_MS later.
  local IDLE_MS, PAUSE_MS, MAX_IDLE = 60000, 10000, 8
  -- Returns the data of a message for the spider: the value of its only field, or all fields as a JSON object. If the
  -- field `meta` contains JSON, it is inserted unchanged. If Lua decoded and encoded it, its numbers would keep only 14
  -- digits, and [] would become {}.
  local function data_of(fields)
    if #fields == 2 then return fields[2] end
    local all, head = {}, '{'
    for i = 1, #fields, 2 do
      local name, value = fields[i], fields[i + 1]
      if name == 'meta' and pcall(cjson.decode, value) then head = '{"meta":' .. value .. ',' else all[name] = value end
    end
    return head .. string.sub(cjson.encode(all), 2)
  end
  -- Returns pending messages that were idle. Some of them may be in progress, because a message stays pending until its
  -- work is done; payloads_of() skips these. `meta` stores the time of the last search, and the id at which the next
  -- search begins (empty: at the first message).
  local function idle_messages(name)
    local note, now = 'stream ' .. name, wall_ms()
    local last_read, from = string.match(redis.call('HGET', key.meta, note) or '', '^(%d+) (.*)$')
    from = from or ''
    if from == '' and math.abs(now - (tonumber(last_read) or 0)) < PAUSE_MS then return {} end
    local reply = redis.pcall('XAUTOCLAIM', name, group_of(), 'crawl', IDLE_MS, from == '' and '0-0' or from,
      'COUNT', MAX_IDLE)
    if reply.err then reply = { '0-0', {} } end -- there is no group yet
    redis.call('HSET', key.meta, note, string.format('%.0f ', now) .. (reply[1] == '0-0' and '' or reply[1]))
    return reply[2]
  end
  local function payloads_of(messages, name, mark)
    local payloads = {}
    for _, message in ipairs(messages) do
      -- Skip a message without fields, because it was deleted, and a message in `messages`, because it is in progress.
      local field = message and message[2] and name .. '\0' .. message[1]
      if field and redis.call('HEXISTS', key.messages, field) == 0 then
        payloads[#payloads + 1] = of_message(field, mark .. data_of(message[2]))
      end
    end
    return payloads
  end
  -- Returns the payloads of some abandoned messages, or else of the next new message; or an error. Each payload names
  -- its message. *read_idle*: search for abandoned messages. Each exchange does this once for each stream.
  read_stream = function(name, mark, read_idle)
    local abandoned = read_idle and payloads_of(idle_messages(name), name, mark) or {}
    if abandoned[1] then return abandoned end
    local function read()
      return redis.pcall('XREADGROUP', 'GROUP', group_of(), 'crawl', 'COUNT', 1, 'STREAMS', name, '>')
    end
    local reply = read()
    if reply and reply.err and string.find(reply.err, 'NOGROUP', 1, true) then
      if redis.call('EXISTS', name) == 0 then return {} end
      local made = redis.pcall('XGROUP', 'CREATE', name, group_of(), '0')
      reply = made.err and made or read()
    end
    if not reply or reply.err then return reply or {} end
    return payloads_of(reply[1][2], name, mark)
  end
end
-- claim: start payloads (of the start keys, in order) -> in-flight; finished -> open again. Each payload becomes an
-- entry. The worker makes requests from the payload, puts them, and then acks the entry. If the entry is released or
-- reclaimed, it waits in a separate partition (CLAIMED). A message stays pending in its stream until all its entries
-- are done.
-- ARGS     want, kind (list: from its head; set; zset: highest score first; stream: oldest first), mark (first bytes of
--          the entry's payload), id_stem (8 random bytes)
-- RETURNS  nothing; adds the entries to `grants`, as lease() does
-- COST     O(want); for a zset O(want * log members)
-- CRASH    before: the payload stays in its key; after: it is in flight, and is reclaimed like any lease
local wrong_key -- a start key whose type differs from the settings: name, actual, expected
each_call(function() wrong_key = {} end)
local CLAIMED_HEAD = struct.pack('>I8', 0) .. '\0' .. CLAIMED .. '\0'
local READ = { list = { 'LINDEX', 0 }, set = { 'SRANDMEMBER' }, zset = { 'ZREVRANGE', 0, 0 } }
local REMOVE = { set = 'SREM', zset = 'ZREM' }
-- Returns a list with the next payload, or with several from a stream. The list is empty if the key is empty or has
-- another type.
local function taken(name, kind, mark, is_first)
  local reply
  if kind == 'stream' then reply = read_stream(name, mark, is_first)
  else reply = redis.pcall(READ[kind][1], name, unpack(READ[kind], 2)) end
  if type(reply) == 'table' and reply.err then
    -- The type is read only after an error, because most keys have the right type.
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
        -- The id contains the sequence: if an exchange was stopped midway, its repeat has the same id_stem, but claims
        -- further payloads. The id depends on the payload: after a roll-back, a late copy of an exchange has the same
        -- id_stem and sequence, but may claim another payload while the worker is busy with the first one.
        local stem = string.sub(redis.sha1hex(id_stem .. payload), 1, 8)
        local id = stem .. struct.pack('>I4', state.sequence % 4294967296)
        open_run() -- if the run was finished, it still is, unless this exchange has stored a new put
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
