-- report: makes a beat, and adds the worker's counts since its last report to the history of the crawl (samples.lua).
-- ARGS     worker_id, epoch, observe (as in beat.lua), exchanges, exchange_ms (sum of the times until their answers),
--          errors, outage_ms (sum of outages that have ended), ended_ms (the longest of these outages; 0: none worth
--          noting), waited_ms (since the present outage began; 0: there is no outage), reason (of the present outage)
-- RETURNS  as in beat.lua
-- COST     O(workers); 0.1 ms more for a sample, which all workers together take once every 10 s
-- CRASH    before: the worker reports the figures later; after, reply lost: it reports them again, and they count twice
-- @include samples beats
local MAX_REASON_BYTES = 250
local worker_id, epoch, observe = ARGV[1], ARGV[2], ARGV[3]
local reported, ended_ms = { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }, tonumber(ARGV[8])
local reply, is_registered = beat(worker_id, epoch, observe)
if not is_registered then return reply end
load_state()
-- For users, the field `waits` of the worker's record has the time since which the worker waits (ms, Redis's clock),
-- and the reason.
local waited_ms, reason = tonumber(ARGV[9] or 0), string.sub(ARGV[10] or '', 1, MAX_REASON_BYTES)
local before = redis.pcall('HGET', worker_key(worker_id), 'waits')
if waited_ms > 0 then
  local since = string.format('%.0f ', math.max(0, wall_ms() - waited_ms))
  redis.pcall('HSET', worker_key(worker_id), 'waits', since .. reason)
  -- The event names no worker: one event counts all workers that wait for the same reason.
  if type(before) ~= 'string' or string.match(before, '^%d+ (.*)$') ~= reason then
    note_event('waits', '', 1, reason)
  end
elseif before then
  redis.pcall('HDEL', worker_key(worker_id), 'waits')
end
local found = sampled()
for i, more in ipairs(reported) do found[i + 2] = found[i + 2] + more end
sample(found)
-- All workers see the same outage of Redis. Only the first worker that reports after the outage notes it.
if ended_ms > 0 and wall_ms() - ended_ms >= found[7] then
  found[7] = wall_ms()
  note_event('outage', worker_id, ended_ms)
end
save_sampled(found)
return reply
