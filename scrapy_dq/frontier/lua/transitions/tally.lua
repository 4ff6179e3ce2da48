-- tally: add a worker's stats since its last report to the sums of all workers. No entry moves.
-- ARGS     source (identifies the reporter; unchanged when its worker rejoins), epoch, run, number (increases by 1),
--          deltas (msgpack array: kind (sum, max, min), stat, decimal number, ...)
-- RETURNS  OK, counted (0: this number was counted before) | LOST | RESYNC | FINISHED (nothing changed)
-- COST     O(deltas)
-- CRASH    before, or reply lost: the worker repeats the report under the same number, which counts once;
--          worker dead: what it has not reported is not counted; stopped by an error: nor is the rest of this report
-- @include base sums
local source, number = ARGV[1], tonumber(ARGV[4])
load_sizes()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
local told = 'told:' .. source
if (tonumber(redis.call('HGET', key.stats, told) or 0) or 0) >= number then return { 'OK', 0 } end
redis.call('HSET', key.stats, told, number)
add_up(cmsgpack.unpack(ARGV[5]))
return { 'OK', 1 }
