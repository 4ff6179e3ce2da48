-- keys: the names of all keys of one crawl. No other Lua file builds names; frontier/keys.py states them, with type and
-- lifetime, and scripts.py puts those that are fixed in here.
-- Each call declares the fixed keys: KEYS[1] is the meta key, "dq:{crawl}:meta". The names of the others are made from
-- data, with the same hash tag, so that on Redis Cluster they are in the slot of those that are declared.
-- The keys of an exchange that follow are start keys.
local prefix, key, start_keys
each_call(function()
  prefix, key, start_keys = string.sub(KEYS[1], 1, -5), { FIXED_KEYS }, { unpack(KEYS, FIRST_START_KEY) }
end)
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
local function bucket_key(generation, n) return prefix .. 'seen:' .. generation .. ':' .. n end
