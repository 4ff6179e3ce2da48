-- drain: the leases of a fenced worker -> quarantine, returned or declined (declined.lua), in bounded steps. When no
-- lease is left, the member is removed.
-- If the worker's process has ended, its entries become suspects. A worker that is only cut off may come back, so its
-- entries go back to their places. Such an entry becomes a suspect only if it was drained before from another cut-off
-- worker that has not come back. `accused` has the cut-off worker from which each entry was drained last, as far as
-- this is known. An entry is charged an attempt only if it was leased from quarantine. An entry that has used up
-- max_attempts is buried.
-- ARGS     worker_id, epoch, run, limit, max_attempts
-- RETURNS  OK, moved, buried, left | ABSENT | NOT_FENCED | LOST | RESYNC | FINISHED
-- COST     O(limit * log quarantine)
-- CRASH    between two steps: the member stays fenced, and any worker continues
-- @include base partition member endings stopped
local worker_id, limit, max_attempts = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
load_state()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
local fenced = redis.call('HGET', worker_key(worker_id), 'fenced')
if not fenced then return { 'ABSENT' } end
if fenced ~= '1' then return { 'NOT_FENCED' } end
load_sizes()
local MAX_ACCUSED = 10000 -- beyond this number, all fields are deleted, because an endless crawl would fill the key
local cut_off, moved, buried = redis.call('HEXISTS', key.absent, worker_id) == 1, 0, 0
write_first()
if redis.call('HLEN', key.accused) > MAX_ACCUSED then redis.call('UNLINK', key.accused) end
local function is_suspect(id)
  if not cut_off then return true end
  local by = redis.call('HGET', key.accused, id)
  redis.call('HSET', key.accused, id, worker_id)
  return by and by ~= worker_id and redis.call('HEXISTS', key.absent, by) == 1
end
-- HSCAN from 0 does not work here: it finds nothing once the first slots of a large hash are empty, so the drain would
-- not end. HKEYS would read the whole hash in each step.
for _, id in ipairs(redis.call('HRANDFIELD', in_flight_key(worker_id), limit)) do
  local lease = read_lease(worker_id, id)
  if lease and lease.quarantined then lease.attempts = lease.attempts + 1 end
  if lease and lease.attempts >= max_attempts then
    bury(worker_id, id, lease, 'its worker died ' .. lease.attempts .. ' times while it was the suspect')
    buried = buried + 1
  elseif lease then
    lease.quarantined = not lease.deferred and (lease.quarantined or is_suspect(id))
    release(worker_id, id, lease)
    moved = moved + 1
  end
end
local left = redis.call('HLEN', in_flight_key(worker_id))
if left == 0 then remove_member(worker_id) end
classify_touched(0)
save_partitions()
save_state()
return { 'OK', moved, buried, left }
