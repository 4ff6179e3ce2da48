-- fence: live -> fenced. A fenced worker's exchanges are answered RESYNC; its seeding level drops.
-- ARGS     worker_id, epoch, run, gone (1: its process is known to be gone; 0: it may come back), by (who fences it
--          before its own start() has begun; else nobody)
-- RETURNS  OK, the name of its start() if that was broken off (starts.lua) | ABSENT (no such member) | LOST | RESYNC
--          | FINISHED
-- COST     O(1)
-- CRASH    before: nothing; after: a fenced member, which any worker drains
-- USES     keys.key, keys.worker_key, shared.unshare, starts.start_broken, state.is_member, state.load_state,
--          state.next_event, state.stale
local worker_id, epoch, run, gone = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
load_state()
local answer = stale(epoch, run)
if answer then return { answer } end
if redis.call('SISMEMBER', key.members, worker_id) == 0 then return { 'ABSENT' } end
local broken = start_broken(worker_id)
-- A supervisor has started it in place of the dead one: it begins later.
if broken ~= '' and is_member(ARGV[5]) then redis.call('HSET', worker_key(ARGV[5]), 'joined', next_event()) end
-- If it comes back: which of its exchanges are stored (rejoin.lua), and that it needs what makes a put known.
if gone == '0' then
  local worker = redis.call('HMGET', worker_key(worker_id), 'last_seq', 'came_from')
  -- Without an exchange it may not know that it has rejoined: its repeat asks for the one before.
  redis.call('HSET', key.absent, worker_id, worker[1] == '0' and worker[2] or worker[1] or 2 ^ 52)
end
redis.call('HSET', worker_key(worker_id), 'fenced', 1, 'seeding', 0)
unshare(worker_id)
return { 'OK', broken }
