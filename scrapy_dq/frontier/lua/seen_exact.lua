-- seen, kind exact: the whole fingerprint in a set. True if it was not there.
local function seen_add(fingerprint) return redis.call('SADD', key.seen, fingerprint) == 1 end
local function seen_tidy() end
