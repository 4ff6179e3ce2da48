-- keys: the names of all keys of one crawl. No other Lua file builds names; frontier/keys.py states the same names with
-- type and lifetime, and a test compares them.
-- KEYS[1] is the meta key, "dq:{crawl}:meta". All other names are derived from it and have the same hash tag, so that
-- on Redis Cluster they are in the slot that KEYS[1] declares. The other KEYS of an exchange are start keys.
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
  samples = prefix .. 'samples',
  minutes = prefix .. 'minutes',
  journal = prefix .. 'journal',
  torn = prefix .. 'torn',
}
local start_keys = { unpack(KEYS, 2) }
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
-- Our generations are short. With one that somebody else has written, a thousand names could take all memory.
local function bucket_key(generation, n) return prefix .. 'seen:' .. string.sub(generation, 1, 64) .. ':' .. n end

-- Many scripts read all members: a million would block Redis for seconds. join.lua refuses more than this; twice as
-- many must come from somebody else.
local MOST_MEMBERS = 10000
-- Bytes of a partition's name, and of a worker's id in a record. Longer ones, which somebody else wrote, would be
-- copied into each of many leases or records.
local MOST_NAME, MOST_ID = 512, 200
local key_types = { members = 'set', beats = 'hash', seeds = 'set', bands = 'hash', rotation = 'zset' }
-- In many crawls none of these exists, nor any of the next group.
local rare_types = {
  absent = 'hash', adopted = 'set', admitted = 'set', more_bands = 'zset', dead = 'hash', failed = 'list',
  returned = 'zset', quarantine = 'zset', delayed = 'zset', stats = 'hash', discarded = 'hash',
}
local polite_types = {
  suspects = 'zset', resting = 'zset', saturated = 'zset', limits = 'hash', busy = 'hash', unsent = 'hash',
  earliest = 'zset', blocked = 'zset',
}
