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
    converting = KEYS[6],
    discarded = KEYS[7],
    adopted = KEYS[8],
    seeds = KEYS[9],
    admitted = KEYS[10],
    messages = KEYS[11],
    bands = KEYS[12],
    more_bands = KEYS[13],
    returned = KEYS[14],
    quarantine = KEYS[15],
    declined = KEYS[16],
    decliners = KEYS[17],
    delayed = KEYS[18],
    rotation = KEYS[19],
    suspects = KEYS[20],
    resting = KEYS[21],
    saturated = KEYS[22],
    limits = KEYS[23],
    busy = KEYS[24],
    spent = KEYS[25],
    unsent = KEYS[26],
    earliest = KEYS[27],
    blocked = KEYS[28],
    dead = KEYS[29],
    failed = KEYS[30],
    stats = KEYS[31],
    samples = KEYS[32],
    minutes = KEYS[33],
    journal = KEYS[34],
    never = KEYS[35],
  }
  return string.sub(KEYS[1], 1, -5), key, { unpack(KEYS, 36) }
end
local prefix, key, start_keys = names() -- EACH CALL
local function backlog_key(rank, partition) return prefix .. 'backlog:' .. rank .. ':' .. partition end
local function worker_key(id) return prefix .. 'worker:' .. id end
local function in_flight_key(id) return prefix .. 'in-flight:' .. id end
local function bucket_key(generation, n) return prefix .. 'seen:' .. generation .. ':' .. n end
