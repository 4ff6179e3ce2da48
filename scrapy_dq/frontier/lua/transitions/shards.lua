-- shards: records at home that all other shards of the crawl exist.
-- ARGS     epoch, run
-- RETURNS  OK | LOST | RESYNC | FINISHED
-- COST     O(1)
-- CRASH    before: the next join records it; until then, a join would not notice a lost shard, and would create it
--          again; after: nothing to do
-- @include state
local epoch, run = ARGV[1], ARGV[2]
load_state()
local answer = stale(epoch, tonumber(run))
if answer then return { answer } end
redis.call('HSET', key.meta, 'shards_exist', 1)
return { 'OK' }
