-- beat: a worker counts up its heartbeat and reads everyone's. No clock is involved.
-- ARGS     worker_id, epoch
-- RETURNS  OK, beats (flat array: worker id, count, ...) | LOST
-- COST     O(workers)
-- CRASH    a beat more or less changes nothing
if redis.call('HGET', key.meta, 'epoch') ~= ARGV[2] then return { 'LOST' } end
if redis.call('HEXISTS', key.beats, ARGV[1]) == 1 then redis.call('HINCRBY', key.beats, ARGV[1], 1) end
return { 'OK', redis.call('HGETALL', key.beats) }
