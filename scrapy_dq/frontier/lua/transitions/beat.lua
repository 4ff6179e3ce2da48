-- beat: a worker increments its heartbeat and reads the heartbeats of all workers. No clock is involved.
-- ARGS     worker_id, epoch
-- RETURNS  OK, beats (flat array: worker id, count, ...), number of words that were sent to all workers | LOST
-- COST     O(workers)
-- CRASH    one beat more or less makes no difference
-- USES     keys.key
local worker_id, epoch = ARGV[1], ARGV[2]
local meta = redis.call('HMGET', key.meta, 'epoch', 'told')
if meta[1] ~= epoch then return { 'LOST' } end
if redis.call('HLEN', key.beats) ~= redis.call('SCARD', key.members) then
  -- A heartbeat was deleted or evicted: without it, a dead member would never be detected.
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    if redis.call('HEXISTS', key.beats, id) == 0 then redis.call('HSET', key.beats, id, 0) end
  end
end
if redis.call('HEXISTS', key.beats, worker_id) == 1 then redis.call('HINCRBY', key.beats, worker_id, 1) end
return { 'OK', redis.call('HGETALL', key.beats), tonumber(string.match(meta[2] or '', '^%d+') or 0) }
