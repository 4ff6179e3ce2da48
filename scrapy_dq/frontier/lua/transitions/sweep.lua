-- sweep: unlinks buckets of a `seen` that was dropped (discarded.lua).
-- ARGS     most (about how many)
-- RETURNS  OK, left (1: some are left, 0: none) | WRONG_TYPE, key, actual, expected
-- COST     O(most); 1 ms for 1,000
-- CRASH    before, after: the next worker of this crawl continues
-- @include base
local most = tonumber(ARGV[1])
load_sizes()
return { 'OK', sweep_buckets(most) and 1 or 0 }
