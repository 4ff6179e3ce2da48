-- beat: a worker increments its heartbeat and reads the heartbeats of all workers.
-- ARGS     worker_id, epoch, observe (1: also read the heartbeats)
-- RETURNS  OK, beats (flat array: worker id, count, ... of members only), number of commands that were sent to all
--          workers | LOST
-- COST     O(workers) if observe is 1, else O(1)
-- CRASH    one beat more or less makes no difference
-- @include beats
local worker_id, epoch, observe = ARGV[1], ARGV[2], ARGV[3]
return (beat(worker_id, epoch, observe))
