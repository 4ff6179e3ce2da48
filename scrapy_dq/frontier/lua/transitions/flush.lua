-- flush: deletes all keys of the crawl, unless a worker is live. It works with stored data of any type, because it is
-- the last resort if nothing else works. purge.lua deletes the keys that a flush cannot find.
-- ARGS     dead_ids (msgpack array of ids of dead workers), force (1: even if workers are live), epoch (of the crawl;
--          empty: none can be read)
-- RETURNS  OK, waiting, in_flight, seen, litter (1: discarded keys must be swept), shards (how many the crawl had)
--          | LIVE, worker_id | CHANGED (this is another crawl: a late copy of this call)
-- COST     O(partitions + workers), 0.1 s for 100,000; the values are freed in the background
-- CRASH    before: nothing; after: an absent frontier, as before the first crawl
-- @include base member
local dead, force = {}, ARGV[2] == '1'
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do dead[id] = true end
local epoch = redis.pcall('HGET', key.meta, 'epoch')
if type(epoch) == 'string' and epoch ~= ARGV[3] then return { 'CHANGED' } end
for _, id in ipairs(force and {} or redis.pcall('SMEMBERS', key.members)) do
  if not dead[id] then return { 'LIVE', id } end
end
local waiting, in_flight, seen, shards = 0, 0, 0, 1
local readable = pcall(function()
  load_sizes()
  waiting, in_flight, seen = state.waiting, state.in_flight, seen_count()
  for number in string.gmatch(redis.call('HGET', key.meta, 'shards') or '', '%d+') do -- the larger one: see freeze.lua
    shards = math.max(shards, tonumber(number))
  end
  clear_run(false)
end)
for name, each in pairs(key) do
  if name ~= 'discarded' or not readable then redis.call('UNLINK', each) end
end
return { 'OK', waiting, in_flight, seen, redis.call('EXISTS', key.discarded), shards }
