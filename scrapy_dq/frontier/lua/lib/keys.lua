-- keys: the names of every key of one crawl. The one place in Lua that makes names;
-- frontier/keys.py states the same names with type and lifetime, and a test holds them equal.
-- KEYS[1] is the meta key, "dq:{crawl}:meta". All other names are derived from it and carry the
-- same hash tag, so that on Redis Cluster they lie in the one slot that KEYS[1] declares. What an exchange is
-- given beside it are keys of others that it claims from.
local prefix = string.sub(KEYS[1], 1, -5)
local key = {
  meta = KEYS[1],
  members = prefix .. 'members',
  beats = prefix .. 'beats',
  absent = prefix .. 'absent',
  seen = prefix .. 'seen',
  converting = prefix .. 'converting',
  discarded = prefix .. 'discarded',
  adopted = prefix .. 'adopted',
  seeds = prefix .. 'seeds',
  admitted = prefix .. 'admitted',
  bands = prefix .. 'bands',
  more_bands = prefix .. 'more_bands',
  returned = prefix .. 'returned',
  quarantine = prefix .. 'quarantine',
  delayed = prefix .. 'delayed',
  rotation = prefix .. 'rotation',
  suspects = prefix .. 'suspects',
  resting = prefix .. 'resting',
  saturated = prefix .. 'saturated',
  limits = prefix .. 'limits',
  busy = prefix .. 'busy',
  unsent = prefix .. 'unsent',
  earliest = prefix .. 'earliest',
  blocked = prefix .. 'blocked',
  dead = prefix .. 'dead',
  failed = prefix .. 'failed',
  stats = prefix .. 'stats',
  torn = prefix .. 'torn',
}
local start_keys = { unpack(KEYS, 2) }
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
-- A generation of ours is short: of a stranger's, a thousand names in one step could take all memory.
local function bucket_key(generation, n) return prefix .. 'seen:' .. string.sub(generation, 1, 64) .. ':' .. n end

local key_types = { members = 'set', beats = 'hash', seeds = 'set', bands = 'hash', rotation = 'zset' }
-- Of many crawls none of these is there; nor of those that follow.
local rare_types = {
  absent = 'hash', adopted = 'set', admitted = 'set', more_bands = 'zset', dead = 'hash', failed = 'list',
  returned = 'zset', quarantine = 'zset', delayed = 'zset', stats = 'hash', discarded = 'hash',
}
local polite_types = {
  suspects = 'zset', resting = 'zset', saturated = 'zset', limits = 'hash', busy = 'hash', unsent = 'hash',
  earliest = 'zset', blocked = 'zset',
}
