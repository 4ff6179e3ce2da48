-- keys: the names of all keys of one crawl. No other Lua file builds names; frontier/keys.py states the same names, in
-- the same order, with type and lifetime, and a test compares them.
-- Each call declares the fixed keys: KEYS[1] is the meta key, "dq:{crawl}:meta". The names of the others are made from
-- data, with the same hash tag, so that on Redis Cluster they are in the slot of those that are declared.
-- The keys of an exchange that follow are start keys.
local function names()
  local key = {
    meta = KEYS[1],
    members = KEYS[2],
    beats = KEYS[3],
    absent = KEYS[4],
    seen = KEYS[5],
    discarded = KEYS[6],
    adopted = KEYS[7],
    seeds = KEYS[8],
    admitted = KEYS[9],
    messages = KEYS[10],
    bands = KEYS[11],
    more_bands = KEYS[12],
    returned = KEYS[13],
    quarantine = KEYS[14],
    declined = KEYS[15],
    decliners = KEYS[16],
    delayed = KEYS[17],
    rotation = KEYS[18],
    suspects = KEYS[19],
    resting = KEYS[20],
    saturated = KEYS[21],
    limits = KEYS[22],
    busy = KEYS[23],
    spent = KEYS[24],
    unsent = KEYS[25],
    earliest = KEYS[26],
    blocked = KEYS[27],
    dead = KEYS[28],
    failed = KEYS[29],
    stats = KEYS[30],
    samples = KEYS[31],
    minutes = KEYS[32],
    journal = KEYS[33],
    never = KEYS[34],
  }
  return string.sub(KEYS[1], 1, -5), key, { unpack(KEYS, 35) }
end
local prefix, key, start_keys
each_call(function() prefix, key, start_keys = names() end)
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
local function bucket_key(generation, n) return prefix .. 'seen:' .. generation .. ':' .. n end
