-- reshard: a shard of a crawl without members begins a change of the number of shards, or ends it.
-- While it lasts, `meta.shards` is "<from>><to>", so that no worker can join, and none can rejoin. Home first, last at
-- the end: it says what the crawl is.
-- ARGS     epoch, change (<from>><to>), home (1: this is home), begins (1, or 0: ends), sequence (the highest of all
--          shards: an entry keeps its turn, and later ones come after it), schema (at the end), described (msgpack:
--          fields of home's meta and their values, for a shard that did not exist)
-- RETURNS  OK, now_ms | ABSENT | LIVE, worker_id | DIFFERS, the stored number of shards
--          | WRONG_TYPE, key, actual, expected
-- COST     O(fields of meta)
-- CRASH    before, after: repeating it changes nothing; a crawl stays closed until a reshard is complete
-- USES     keys.key, limits.set_limits, member.clear_run, shared.stored_field, shared.stored_shards, state,
--          state.load_state, state.now_ms, state.save_state, types.wrong_type
local epoch, change, home, begins = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local sequence, schema, described = tonumber(ARGV[5]), ARGV[6], cmsgpack.unpack(ARGV[7])
local wrong = wrong_type()
if wrong then return wrong end
local from, to = string.match(change, '^(%d+)>(%d+)$')
local is_new = state.epoch ~= epoch
if is_new and (home or not begins) then return { 'ABSENT' } end
if is_new then -- what is left of another crawl
  clear_run(false)
  redis.call('UNLINK', key.meta, key.dead, key.failed, key.limits)
  redis.call('HSET', key.meta, unpack(described))
  load_state()
  if stored_field('limits_set') ~= '' then set_limits(stored_field('limits_set')) end
end
local stored = stored_shards()
if home and stored ~= change and (stored ~= from or not begins) then return { 'DIFFERS', stored } end
local live = redis.call('SRANDMEMBER', key.members)
if live then return { 'LIVE', live } end
state.sequence = math.max(state.sequence, sequence)
if begins then
  redis.call('HSET', key.meta, 'shards', change)
else
  for _, field in ipairs(redis.call('HKEYS', key.meta)) do
    if string.find(field, '^reshard:') then redis.call('HDEL', key.meta, field) end
  end
  redis.call('HSET', key.meta, 'schema', schema, 'shards', to)
  if to == '1' then redis.call('HDEL', key.meta, 'shards', 'shards_exist') end
  if home and to ~= '1' then redis.call('HSET', key.meta, 'shards_exist', 1) end
end
save_state()
return { 'OK', now_ms() }
