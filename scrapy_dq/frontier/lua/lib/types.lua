-- types: checks the type of each key before anything is written.
-- Scripts have no rollback: a key of the wrong type must be found before the first write.
-- USES     keys.MOST_MEMBERS, keys.in_flight_key, keys.key, keys.key_types, keys.polite_types, keys.rare_types,
--          keys.worker_key, state, state.load_state, state.there, state.wrong_seen
local function is_wrong(name, expected)
  local actual = redis.call('TYPE', name).ok
  if actual ~= 'none' and actual ~= expected then return { 'WRONG_TYPE', name, actual, expected } end
end
local polite = nil -- EACH CALL. Whether any key of politeness exists, as far as this script knows
local function too_many(most)
  if there.members > most then return { 'TOO_MANY', key.members, there.members } end
end
local SIZE = { set = 'SCARD', hash = 'HLEN', zset = 'ZCARD', list = 'LLEN' }
-- Returns the size of a key; or nil and the error. Cheaper than reading its type.
local function size_of(name, expected)
  local size = redis.pcall(SIZE[expected], name)
  if type(size) == 'number' then return size end
  local wrong = is_wrong(name, expected)
  if not wrong then error(size.err, 0) end
  return nil, wrong
end
local function wrong_among(types)
  for name, expected in pairs(types) do
    local size, wrong = size_of(key[name], expected)
    if wrong then return wrong end
    there[name] = size
  end
end
local function wrong_type(worker_id)
  local _, wrong
  if not state then
    _, wrong = size_of(key.meta, 'hash')
    if wrong then return wrong end
    load_state()
  end
  there = {}
  wrong = wrong_among(key_types)
  if wrong then return wrong end
  wrong = too_many(2 * MOST_MEMBERS)
  if wrong then return wrong end
  if redis.call('EXISTS', key.absent, key.adopted, key.admitted, key.more_bands, key.dead, key.failed, key.returned,
    key.quarantine, key.declined, key.decliners, key.delayed, key.stats, key.discarded, key.messages) > 0
  then
    wrong = wrong_among(rare_types)
    if wrong then return wrong end
  end
  polite = redis.call('EXISTS', key.suspects, key.resting, key.saturated, key.limits, key.busy, key.unsent,
    key.earliest, key.blocked, key.spent) > 0
  wrong = polite and wrong_among(polite_types)
  if wrong then return wrong end
  wrong = wrong_seen()
  if wrong then return wrong end
  if not worker_id then return end
  _, wrong = size_of(worker_key(worker_id), 'hash')
  if wrong then return wrong end
  there.in_flight, wrong = size_of(in_flight_key(worker_id), 'hash')
  return wrong
end
-- After its first write a script may exceed maxmemory. With this one, which changes nothing, all that is stored can be
-- moved in a Redis that is full.
local function write_first() redis.call('HDEL', key.meta, '') end
