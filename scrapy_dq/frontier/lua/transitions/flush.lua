-- flush: delete everything of the crawl, unless a worker is live.
-- ARGS     dead_ids (msgpack array of ids of workers that are dead)
-- RETURNS  OK, waiting, in_flight, seen, litter (1: discarded keys must be swept) | LIVE, worker_id (nothing changed)
-- COST     O(partitions + workers), 0.1 s for 100,000; the values are freed in the background
-- CRASH    before: nothing; after: an absent frontier, as before the first crawl
-- USES     keys.key, member.clear_run, state, state.seen_count, types.wrong_type
local dead = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do dead[id] = true end
local wrong = wrong_type()
if wrong then return wrong end
for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
  if not dead[id] then return { 'LIVE', id } end
end
local waiting, in_flight, seen = state.waiting, state.in_flight, seen_count()
clear_run(false)
redis.call('UNLINK', key.meta, key.dead, key.failed, key.stats, key.limits)
return { 'OK', waiting, in_flight, seen, redis.call('EXISTS', key.discarded) }
