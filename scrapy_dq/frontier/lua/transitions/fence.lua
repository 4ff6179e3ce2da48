-- fence: live -> fenced. Redis sets the worker's seeding level to 0, and answers its exchanges with RESYNC.
-- ARGS     worker_id, epoch, run, gone (1: the worker's process has ended; 0: the worker may come back), by (the id of
--          the calling worker, if that worker's own start() has not begun; else empty)
-- RETURNS  OK, the name of its start() if the fence interrupts it (starts.lua) | ABSENT (no such member) | LOST
--          | RESYNC | FINISHED
-- COST     O(1)
-- CRASH    before: nothing; after: the member is fenced, and any worker drains it
-- @include base shared starts journal
local worker_id, epoch, run, gone = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
load_state()
local answer = stale(epoch, run)
if answer then return { answer } end
if redis.call('SISMEMBER', key.members, worker_id) == 0 then return { 'ABSENT' } end
local broken = start_broken(worker_id)
-- A supervisor may have started the calling worker to replace the dead worker. So the calling worker counts as joined
-- after the interruption, and its start() can complete the interrupted one.
if broken ~= '' and is_member(ARGV[5]) then redis.call('HSET', worker_key(ARGV[5]), 'joined', next_event()) end
-- If the worker may return, `absent` stores the number of its last exchange for the rejoin (rejoin.lua). While `absent`
-- exists, the tokens of puts are kept (end_run).
if gone == '0' then
  local worker = redis.call('HMGET', worker_key(worker_id), 'last_seq', 'came_from')
  redis.call('HSET', key.absent, worker_id, worker[1] or 2 ^ 52)
  -- If the worker has made no exchange under this id, the reply to its rejoin may be lost. Then the worker repeats that
  -- rejoin, and must get the same answer: the number of the last exchange under the previous id.
  if worker[1] == '0' and worker[2] then redis.call('HSET', key.absent, 'before ' .. worker_id, worker[2]) end
end
local fenced = fields_of(worker_id, 'fenced')[1]
redis.call('HSET', worker_key(worker_id), 'fenced', 1, 'seeding', 0)
unshare(worker_id)
if fenced ~= '1' then note_event('died', worker_id, leases_of(worker_id)) end
return { 'OK', broken }
