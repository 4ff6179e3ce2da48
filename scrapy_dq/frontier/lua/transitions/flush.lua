-- flush: deletes all keys of the crawl, unless a worker is live. It is the last resort if nothing else works, so it
-- accepts keys of any type. purge.lua deletes the keys that a flush cannot find.
-- ARGS     dead_ids (msgpack array of the ids of dead workers), force (1: delete the keys even if workers are live),
--          epoch (of the crawl; empty: no epoch can be read)
-- RETURNS  OK, waiting, in_flight, seen, litter (1: call sweep.lua for `discarded`), shards (how many the crawl had)
--          | LIVE, worker_id | CHANGED (the stored crawl has another epoch: this may be a late copy of the call)
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
  -- During a move or an import, the field has two numbers, such as "2>0". The larger one is the number of shards.
  for number in string.gmatch(redis.call('HGET', key.meta, 'shards') or '', '%d+') do
    shards = math.max(shards, tonumber(number))
  end
  clear_run(false)
end)
for name, each in pairs(key) do
  if name ~= 'discarded' or not readable then redis.call('UNLINK', each) end
end
return { 'OK', waiting, in_flight, seen, redis.call('EXISTS', key.discarded), shards }
