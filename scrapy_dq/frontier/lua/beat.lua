-- beat: a worker counts up its heartbeat and reads everyone's. No clock is involved.
-- ARGS     worker_id, epoch
-- RETURNS  OK, beats (flat array: worker id, count, ...), how often all workers were told something | LOST
-- COST     O(workers)
-- CRASH    a beat more or less changes nothing
local meta = redis.call('HMGET', key.meta, 'epoch', 'told')
if meta[1] ~= ARGV[2] then return { 'LOST' } end
if redis.call('HEXISTS', key.beats, ARGV[1]) == 1 then redis.call('HINCRBY', key.beats, ARGV[1], 1) end
return { 'OK', redis.call('HGETALL', key.beats), tonumber(string.match(meta[2] or '', '^%d+') or 0) }
