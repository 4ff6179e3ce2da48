-- flush: delete everything of the crawl, unless a worker is live. It works whatever is stored, of whatever type: it is
-- the way out if nothing else works.
-- ARGS     dead_ids (msgpack array of ids of workers that are dead), force (1: even if workers are live), epoch (of the
--          crawl; empty: it has none that can be read)
-- RETURNS  OK, waiting, in_flight, seen, litter (1: discarded keys must be swept), shards (how many the crawl had)
--          | LIVE, worker_id
--          | TOO_MANY, key, members: nothing was changed | CHANGED (this is another crawl: a late copy of this call)
-- COST     O(partitions + workers), 0.1 s for 100,000; the values are freed in the background
-- CRASH    before: nothing; after: an absent frontier, as before the first crawl
-- USES     digits, keys.MOST_MEMBERS, keys.key, keys.key_types, keys.polite_types, keys.rare_types, member.clear_run,
--          state, state.load_state, state.seen_count, state.there, state.wrong_seen, types.is_wrong, types.size_of,
--          types.too_many
local MOST_SHARDS = 1024
local dead, force = {}, ARGV[2] == '1'
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do dead[id] = true end
local epoch = redis.pcall('HGET', key.meta, 'epoch')
if type(epoch) == 'string' and epoch ~= ARGV[3] then return { 'CHANGED' } end
there = { members = size_of(key.members, 'set') or 0 }
local crowded = too_many(2 * MOST_MEMBERS)
if crowded and not force then return crowded end
if crowded then redis.call('UNLINK', key.members) end -- purge.lua finds their keys
for _, id in ipairs(there.members > 0 and not force and redis.call('SMEMBERS', key.members) or {}) do
  if not dead[id] then return { 'LIVE', id } end
end
-- From here on the types are right. What is in a key of another type is not read.
for _, types in ipairs({ { meta = 'hash' }, key_types, rare_types, polite_types }) do
  for name, expected in pairs(types) do
    if is_wrong(key[name], expected) then redis.call('UNLINK', key[name]) end
  end
end
load_state()
local waiting, in_flight, seen = state.waiting, state.in_flight, wrong_seen() and 0 or seen_count()
local shards = 1 -- the larger one of two: see reshard.lua
for number in string.gmatch(redis.call('HGET', key.meta, 'shards') or '', '%d+') do
  shards = math.max(shards, digits(number, MOST_SHARDS))
end
clear_run(false)
redis.call('UNLINK', key.meta, key.dead, key.failed, key.stats, key.limits, key.samples, key.minutes,
  key.journal, key.spent)
return { 'OK', waiting, in_flight, seen, redis.call('EXISTS', key.discarded), shards }
