-- keys: the names of every key of one crawl. The one place in Lua that makes names;
-- frontier/keys.py states the same names with type and lifetime, and a test holds them equal.
-- KEYS[1] is the meta key, "dq:{crawl}:meta". All other names are derived from it and carry the
-- same hash tag, so that on Redis Cluster they lie in the one slot that KEYS[1] declares.
local prefix = string.sub(KEYS[1], 1, -5)
local key = {
  meta = KEYS[1],
  members = prefix .. 'members',
  beats = prefix .. 'beats',
  seen = prefix .. 'seen',
  seeds = prefix .. 'seeds',
  admitted = prefix .. 'admitted',
  bands = prefix .. 'bands',
  returned = prefix .. 'returned',
  quarantine = prefix .. 'quarantine',
  dead = prefix .. 'dead',
  failed = prefix .. 'failed',
}
local function backlog_key(rank) return prefix .. 'backlog:' .. rank end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end

local key_types = {
  meta = 'hash', members = 'set', beats = 'hash', seen = 'set', seeds = 'set', admitted = 'set',
  bands = 'zset', returned = 'zset', quarantine = 'zset', dead = 'hash', failed = 'list',
}
-- A script has no roll-back: a key of a wrong type must be found before the first write.
local function is_wrong(name, expected)
  local actual = redis.call('TYPE', name).ok
  if actual ~= 'none' and actual ~= expected then return { 'WRONG_TYPE', name, actual, expected } end
end
local function wrong_type(worker_id)
  for name, expected in pairs(key_types) do
    local wrong = is_wrong(key[name], expected)
    if wrong then return wrong end
  end
  if worker_id then
    return is_wrong(worker_key(worker_id), 'hash') or is_wrong(in_flight_key(worker_id), 'hash')
  end
end
local function wrong_list(ranks)
  for rank in pairs(ranks) do
    local wrong = is_wrong(backlog_key(rank), 'list')
    if wrong then return wrong end
  end
end
