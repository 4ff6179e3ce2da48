-- load: stores data of `scrapy dq import` or `scrapy dq move` in a shard of a new crawl. Until the load ends,
-- `meta.shards` is "0><shards>", so that no worker can join. A load begins and ends in each shard, and home ends last.
-- ARGS     epoch (of the new crawl; each attempt to load it has its own epoch), shards (how many the crawl will have),
--          label (a step, or the kind of the items), items (msgpack array)
-- RETURNS  OK, how many calls have stored items here | CHANGED (another attempt has begun, or this is a late copy)
--          | WRONG_TYPE, key, actual, expected
-- COST     O(items); begin: O(lists) if another attempt was begun here
-- CRASH    before, after: the next attempt to load begins again
-- The labels and their items:
--   begin         deletes the data of an earlier attempt. Items: the epoch that this shard had (empty: none), the
--                 highest sequence of the crawl, an array of fields of meta and their values
--   end           ends the load of this shard. Items: for home, how many requests are done, failed and gone; else none
--   tidy          deletes the mark of the load (`load:stored`), once the end of home's load is on disk. No items
--   backlog       rank, partition and elements of each list
--   failed, samples, minutes, journal                   elements, in the order of the list
--   returned, quarantine, delayed, earliest, blocked    a score before each member
--   dead, limits, spent, stats                          field, value, ...
--   seeds, admitted, adopted                            members
--   seen          tokens; before each token its time (expiring) or its first bucket (compact)
--   fingerprints  tokens, which any kind of seen stores as seen now
--   messages      fields of `messages`; home acknowledges those messages that have no entry here
-- @include base shared partition member limits messages stopped
local PART = 1000 -- an even number, so that pairs stay together
-- Calls a command on a key with all *items*, and returns the sum of its answers.
local function in_parts(command, name, items)
  local sum = 0
  for i = 1, #items, PART do
    sum = sum + redis.call(command, name, unpack(items, i, math.min(i + PART - 1, #items)))
  end
  return sum
end
local IN_ORDER = { failed = true, samples = true, minutes = true, journal = true } -- lists, in addition to the backlog
-- Sorted sets, and the name of the count that includes their members (empty: no count does).
local SCORED = { returned = 'waiting', quarantine = 'waiting', delayed = 'delayed', earliest = '', blocked = '' }
local epoch, shards, label, items = ARGV[1], ARGV[2], ARGV[3], cmsgpack.unpack(ARGV[4])
load_sizes()
if label == 'begin' then
  local replaces, sequence, described = unpack(items)
  -- RACE: another crawl has begun here, or a copy of this call arrives late.
  if (state.epoch or '') ~= replaces then return { 'CHANGED' } end
  clear_run(false)
  redis.call('UNLINK', key.meta, key.dead, key.failed, key.limits, key.spent, key.stats, key.samples, key.minutes,
    key.journal)
  -- Use one command, so that `shards` is stored with the other fields: no worker can join this unfinished shard.
  redis.call('HSET', key.meta, 'shards', '0>' .. shards, 'load:stored', 0, unpack(described))
  load_state()
  if stored_field('limits_set') ~= '' then set_limits(stored_field('limits_set')) end
  redis.call('UNLINK', key.limits) -- later calls store the present limits of partitions
  state.sequence = sequence
  save_state()
  return { 'OK', 0 }
end
if state.epoch ~= epoch or stored_field('load:stored') == '' then return { 'CHANGED' } end
if label == 'tidy' then return { 'OK', redis.call('HDEL', key.meta, 'load:stored') } end
if label == 'end' then
  if items[1] then -- this is home
    state.done, state.failed = items[1], items[2]
    redis.call('HSET', key.meta, 'gone', string.format('%.0f', items[3]))
    if shards ~= '1' then redis.call('HSET', key.meta, 'shards_exist', 1) end
  end
  save_state()
  if shards == '1' then redis.call('HDEL', key.meta, 'shards') else redis.call('HSET', key.meta, 'shards', shards) end
  return { 'OK', 0 }
end
if label == 'backlog' then
  for i = 1, #items, 3 do
    local rank, partition, elements = items[i], items[i + 1], items[i + 2]
    local list = list_of(rank, partition)
    -- Store the band first, because a load that begins again deletes only lists that have a band.
    if redis.call('EXISTS', list) == 0 then add_band(partition, rank) end
    in_parts('RPUSH', list, elements)
    state.waiting, touched[partition] = state.waiting + #elements, true
  end
elseif IN_ORDER[label] then
  in_parts('RPUSH', key[label], items)
  if label == 'failed' then state.failed = state.failed + #items end
elseif SCORED[label] then
  local count, added = SCORED[label], in_parts('ZADD', key[label], items)
  if count ~= '' then state[count] = state[count] + added else polite = true end
  for i = 2, label == 'delayed' and 0 or #items, 2 do touched[string.match(items[i], '^[^%z]*')] = true end
elseif label == 'dead' or label == 'limits' or label == 'spent' or label == 'stats' then
  if label == 'limits' and items[1] then begin_to_limit() end
  in_parts('HSET', key[label], items)
elseif label == 'seen' then
  seen().load(items)
  tidy_seen()
elseif label == 'fingerprints' then
  for _, fingerprint in ipairs(items) do seen().add(fingerprint) end
  tidy_seen()
elseif label == 'messages' then
  for _, field in ipairs(items) do count_message(of_message(field, ''), 0) end
else
  in_parts('SADD', key[label], items)
end
if touched[CLAIMED] then state.claimed = 1 end
classify_touched(0)
save_state()
return { 'OK', redis.call('HINCRBY', key.meta, 'load:stored', 1) }
