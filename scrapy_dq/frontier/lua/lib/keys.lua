-- keys: makes the names of all keys of one crawl. No other Lua file makes names. frontier/keys.py lists all keys with
-- their types and lifetimes, and scripts.py inserts the names of the fixed keys here.
-- Each call of a script declares the fixed keys. KEYS[1] is the meta key, "dq:{crawl}:meta". The functions below make
-- the other names from data. All names have the same hash tag, so that Redis Cluster keeps all keys in one slot.
-- A join and an exchange pass the start keys after the fixed keys.
local prefix, key, start_keys
each_call(function()
  prefix, key, start_keys = string.sub(KEYS[1], 1, -5), { FIXED_KEYS }, { unpack(KEYS, FIRST_START_KEY) }
end)
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
local function bucket_key(generation, n) return prefix .. 'seen:' .. generation .. ':' .. n end
