-- known: returns whether a put with this fingerprint would be a duplicate. Changes nothing.
-- ARGS     fingerprint, known_as (the same request's fingerprint in the scheduler whose crawl may have been adopted)
-- RETURNS  1 (a duplicate) | 0
-- COST     O(log seen)
-- CRASH    nothing to do
-- @include base
local fingerprint, known_as = ARGV[1], ARGV[2]
load_state()
return (seen().has(fingerprint) or redis.call('SISMEMBER', key.adopted, known_as) == 1) and 1 or 0
