-- freeze: prepares a shard for `scrapy dq move`, if the crawl has no members. It sets `meta.shards` to "<shards>>0".
-- From then on, no worker can join or rejoin, and only a deletion can change the crawl.
-- ARGS     epoch, shards, plan (for home: where the crawl goes), messages (msgpack array: fields of `messages` to
--          acknowledge, because their entries are stored in the new place)
-- RETURNS  OK, plan (of the first call) | LIVE, worker_id | CHANGED (this is another crawl, or it has another number of
--          shards) | WRONG_TYPE, key, actual, expected
-- COST     O(messages)
-- CRASH    before: nothing, or some of the messages are still pending; after: a repeat changes nothing
-- @include base shared messages
local epoch, shards, plan, messages = ARGV[1], ARGV[2], ARGV[3], cmsgpack.unpack(ARGV[4])
load_sizes()
local stored, frozen = stored_shards(), shards .. '>0'
if state.epoch ~= epoch or stored ~= shards and stored ~= frozen then return { 'CHANGED' } end
local live = redis.call('SRANDMEMBER', key.members)
if live then return { 'LIVE', live } end
if stored ~= frozen then redis.call('HSET', key.meta, 'shards', frozen, 'moving', plan) end
for _, field in ipairs(messages) do
  redis.call('HDEL', key.messages, field)
  count_message(of_message(field, ''), 0)
end
return { 'OK', stored_field('moving') }
