-- drain: the leases of a fenced worker -> quarantine, in bounded steps; empty -> the member is removed.
-- Only what died in quarantine is charged an attempt; past max_attempts it is buried.
-- ARGS     worker_id, epoch, run, limit, max_attempts
-- RETURNS  OK, moved, buried, left | ABSENT | NOT_FENCED | LOST | RESYNC | FINISHED
-- COST     O(limit * log quarantine)
-- CRASH    between two steps: the member stays fenced, and any worker goes on
-- USES     bury.bury_lease, entry.come_back, entry.take_lease, keys.in_flight_key, keys.worker_key,
--          member.remove_member, partition.classify_touched, politeness.save_partitions, state.load_state,
--          state.save_state, state.stale, types.wrong_type
local worker_id, limit, max_attempts = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
load_state()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
local fenced = redis.call('HGET', worker_key(worker_id), 'fenced')
if not fenced then return { 'ABSENT' } end
if fenced ~= '1' then return { 'NOT_FENCED' } end
local wrong = wrong_type(worker_id)
if wrong then return wrong end
local moved, buried = 0, 0
-- Neither HSCAN from 0, which finds nothing and never ends once the first slots of a large hash are empty, nor
-- HKEYS, which reads all of it at each step.
for _, id in ipairs(redis.call('HRANDFIELD', in_flight_key(worker_id), limit)) do
  local lease = take_lease(worker_id, id)
  if lease and lease.quarantined then lease.attempts = lease.attempts + 1 end
  if lease and lease.attempts >= max_attempts then
    bury_lease(worker_id, id, lease,
      'its worker died ' .. lease.attempts .. ' times while it was the suspect')
    buried = buried + 1
  elseif lease then
    come_back('quarantine', id, lease)
    moved = moved + 1
  end
end
local left = redis.call('HLEN', in_flight_key(worker_id))
if left == 0 then remove_member(worker_id) end
classify_touched(0)
save_partitions()
save_state()
return { 'OK', moved, buried, left }
