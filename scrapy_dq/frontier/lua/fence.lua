-- fence: live -> fenced. A fenced worker's exchanges are answered RESYNC; its seeding level drops.
-- ARGS     worker_id, epoch, run
-- RETURNS  OK | ABSENT (no such member) | LOST | RESYNC | FINISHED
-- COST     O(1)
-- CRASH    before: nothing; after: a fenced member, which any worker drains
load_state()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
if redis.call('SISMEMBER', key.members, ARGV[1]) == 0 then return { 'ABSENT' } end
redis.call('HSET', worker_key(ARGV[1]), 'fenced', 1, 'seeding', 0)
return { 'OK' }
