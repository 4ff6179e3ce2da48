-- beat: a worker counts up its heartbeat and reads everyone's. No clock is involved.
-- ARGS     worker_id, epoch
-- RETURNS  OK, beats (flat array: worker id, count, ...), how often all workers were told something | LOST
-- COST     O(workers)
-- CRASH    a beat more or less changes nothing
-- USES     keys.key
local worker_id, epoch = ARGV[1], ARGV[2]
local meta = redis.call('HMGET', key.meta, 'epoch', 'told')
if meta[1] ~= epoch then return { 'LOST' } end
if redis.call('HLEN', key.beats) ~= redis.call('SCARD', key.members) then
  -- One of them was deleted, or evicted: without its beat a dead member would never be found.
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    if redis.call('HEXISTS', key.beats, id) == 0 then redis.call('HSET', key.beats, id, 0) end
  end
end
if redis.call('HEXISTS', key.beats, worker_id) == 1 then redis.call('HINCRBY', key.beats, worker_id, 1) end
return { 'OK', redis.call('HGETALL', key.beats), tonumber(string.match(meta[2] or '', '^%d+') or 0) }
