-- report: a beat, and what its worker has counted since its last report, for the history of the crawl (samples.lua).
-- ARGS     worker_id, epoch, looks (as of beat.lua), exchanges, exchange_ms (until their answers), errors, outage_ms
--          (without Redis), ended_ms (the longest outage that has ended; 0: none worth noting)
-- RETURNS  as beat.lua
-- COST     O(workers); 0.1 ms more for a sample, which all workers together take once in 10 s
-- CRASH    before: it is reported later; after, reply lost: it is reported again, and counted twice
-- USES     beats.beat, digits, journal.note_event, samples.MOST_SUM, samples.sample, samples.sampled,
--          samples.save_sampled, state.load_state, state.wall_ms
local worker_id, epoch, looks = ARGV[1], ARGV[2], ARGV[3]
local reported, ended_ms = { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }, digits(ARGV[8], MOST_SUM)
local reply, is_one = beat(worker_id, epoch, looks)
if not is_one then return reply end
load_state()
local found = sampled()
for i, more in ipairs(reported) do found[i + 2] = math.min(found[i + 2] + digits(more, MOST_SUM), MOST_SUM) end
sample(found)
-- All workers see an outage of Redis; the first one that is back has it noted.
if ended_ms > 0 and wall_ms() - ended_ms >= found[7] then
  found[7] = wall_ms()
  note_event('outage', worker_id, ended_ms)
end
save_sampled(found)
return reply
