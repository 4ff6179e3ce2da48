-- reshard: a shard of a crawl without live members begins a change of the number of shards, or ends it. From 0 on: the
-- crawl is imported, and begins to exist.
-- While it lasts, `meta.shards` is "<from>><to>", so that no worker can join, and none can rejoin. Home first, last at
-- the end: it says what the crawl is. One process at a time: the last one that has begun here owns it.
-- ARGS     epoch, change (<from>><to>), owner (random, of the process), id (random, of the reshard: for home a new
--          one, which counts if none is under way; for the others that of home), home (1: this is home), step (begin;
--          end; tidy, after home has ended: the marks of another shard go), added (1: there was no such shard
--          before), run (of home), open (1: home's run is open), sequence (the highest of all shards: an entry keeps
--          its turn, and later ones come after it), schema (at the end), described (msgpack: fields of home's meta
--          and their values), replaces (the epoch that a new shard had when this reshard began)
-- RETURNS  OK, now_ms, id | ABSENT | LIVE, worker_id | LATER (it is in a later run than home) | CHANGED (of another
--          number, another process owns it, or this is a late copy) | WRONG_TYPE, key, actual, expected
-- COST     O(fields of meta); O(lists) if what is there is of another crawl, or of an older run
-- CRASH    before, after: repeating it changes nothing; a crawl stays closed until a reshard is complete
local epoch, change, owner, id, home, step = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local begins = step == 'begin'
local added, run, open, sequence = ARGV[7] == '1', tonumber(ARGV[8]), ARGV[9] == '1', tonumber(ARGV[10])
local schema, described, replaces = ARGV[11], cmsgpack.unpack(ARGV[12]), ARGV[13]
load_sizes()
local from, to = string.match(change, '^(%d+)>(%d+)$')
local is_new = state.epoch ~= epoch or added and stored_field('reshard:id') ~= id
if is_new and (home and from ~= '0' or not begins) then return { 'ABSENT' } end
if is_new and home and state.epoch then return { 'CHANGED' } end
-- RACE: a call arrives after its reshard is complete, or after another crawl has begun: it must not empty this shard.
if is_new and (state.epoch or '') ~= replaces then return { 'CHANGED' } end
local stored = is_new and from or stored_shards()
if home and stored ~= change and (stored ~= from or not begins) then return { 'CHANGED' } end
if not begins and stored_field('reshard:owner') ~= owner then return { 'CHANGED' } end
local function drop_marks()
  for _, field in ipairs(redis.call('HKEYS', key.meta)) do
    if string.find(field, '^reshard:') then redis.call('HDEL', key.meta, field) end
  end
end
if step == 'tidy' then
  drop_marks()
  return { 'OK', now_ms(), id }
end
if not is_new and state.run > run then return { 'LATER' } end
local unfit_seen = begins and not is_new and unfit() -- else neither this nor the conversion could be completed
if unfit_seen then return unfit_seen end
if is_new then -- what is left of another crawl, or of another reshard
  clear_run(false)
  redis.call('UNLINK', key.meta, key.dead, key.failed, key.limits, key.stats, key.samples, key.minutes, key.journal,
    key.spent)
  -- With the marks at once: if this script is stopped after it, no worker takes what there is for the crawl.
  redis.call('HSET', key.meta, 'cleared', 0, 'shards', change, 'reshard:id', id, 'reshard:owner', owner,
    'reshard:fresh', 1, unpack(described))
elseif state.run < run or open and stored_field('cleared') == '1' then -- as join.lua, when a worker comes from home
  redis.call('HSET', key.meta, 'reshard:fresh', 1)
  next_run(keeps_seen(''))
  save_state()
end
if stored_field('reshard:fresh') == '1' then -- also if a call before was stopped in here
  redis.call('HSET', key.meta, 'cleared', 0, unpack(described))
  load_state()
  if stored_field('limits_set') ~= '' then set_limits(stored_field('limits_set')) end
  if from == '0' then redis.call('UNLINK', key.limits) end -- those that were in force arrive
  redis.call('HDEL', key.meta, 'reshard:fresh')
end
local live = redis.call('SRANDMEMBER', key.members)
if live then return { 'LIVE', live } end
state.sequence = math.max(state.sequence, sequence)
if begins then
  if home and stored == change then id = stored_field('reshard:id') end
  if stored_field('reshard:id') ~= id then drop_marks() end
  redis.call('HSET', key.meta, 'shards', change, 'reshard:id', id, 'reshard:owner', owner)
else
  -- The others keep their marks until home has ended: the repeat of a call that is killed here needs them.
  if home then drop_marks() end
  redis.call('HSET', key.meta, 'schema', schema, 'shards', to)
  if to == '1' then redis.call('HDEL', key.meta, 'shards', 'shards_exist') end
  if home and to ~= '1' then redis.call('HSET', key.meta, 'shards_exist', 1) end
end
save_state()
return { 'OK', now_ms(), id }
