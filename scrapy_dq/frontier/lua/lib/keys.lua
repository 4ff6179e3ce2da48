-- keys: the names of all keys of one crawl. No other Lua file builds names. frontier/keys.py lists them with type and
-- lifetime, and scripts.py inserts the fixed ones here.
-- Each call declares the fixed keys: KEYS[1] is the meta key, "dq:{crawl}:meta". The other names are made from data,
-- with the same hash tag, so that on Redis Cluster they are in the slot of the declared keys.
-- An exchange passes its start keys after the fixed keys.
local prefix, key, start_keys
each_call(function()
  prefix, key, start_keys = string.sub(KEYS[1], 1, -5), { FIXED_KEYS }, { unpack(KEYS, FIRST_START_KEY) }
end)
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
local function bucket_key(generation, n) return prefix .. 'seen:' .. generation .. ':' .. n end
