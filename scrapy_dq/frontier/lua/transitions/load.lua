-- load: a shard of a new crawl begins to exist, stores what `scrapy dq import`, or a move, brings, and ends.
-- While it lasts, `meta.shards` is "0><shards>", so that no worker can join. Each shard begins and ends, home last.
-- ARGS     epoch (of the new crawl), shards (how many it will have), owner (random, of the process: the last one that
--          has begun here owns it), label (begin; end; tidy: home has ended, which is on its disk, and the marks go; or
--          what the items are: backlog, failed, samples, minutes, journal: in this order; returned, quarantine,
--          delayed, dead, seen, seeds, admitted, adopted, limits, spent, earliest, blocked, stats; fingerprints: they
--          become seen now, of whatever kind that is; messages: for home, acknowledged), first (of lists: how many
--          elements of any list were stored here before), items (msgpack: elements, members or tokens; of the backlog
--          rank, partition and elements of one list after another; with a time before each: delayed, earliest, blocked,
--          an expiring seen; field and value: dead, limits, spent, stats; the first bucket and the member: a compact
--          seen; begin: the epoch that this shard had (empty: none), the highest sequence of the crawl, fields of meta
--          and their values; end: of home how many are done, failed and gone)
-- RETURNS  OK, how often something was stored here | CHANGED (another process owns it, or this is a late copy)
--          | GAP (elements are missing that were stored: this shard was rolled back)
--          | WRONG_TYPE, key, actual, expected
-- COST     O(items); begin: O(lists) if another load was begun here
-- CRASH    before, after: repeating it changes nothing: elements of lists are counted, all else is a set
-- @include base shared partition member limits messages stopped
-- loading: how load.lua stores many items, each of them once.
local IN_ORDER = { failed = true, samples = true, minutes = true, journal = true } -- lists, beside those of the backlog
local PART = 1000 -- even: pairs stay together
-- Calls a command on a key with all *items* from position *from* on, and returns the sum of its answers.
local function in_parts(command, name, items, from)
  local sum = 0
  for i = from or 1, #items, PART do
    sum = sum + redis.call(command, name, unpack(items, i, math.min(i + PART - 1, #items)))
  end
  return sum
end
-- How many elements of lists are stored is counted. Returns a function that adds to a list those that are not there
-- yet, and returns how many these are; and one to call at the end. Nothing: elements are missing that were there.
-- Before each list its length is noted: if this script is stopped midway, the repeat finds what was stored.
local function appender(first)
  local had = tonumber(stored_field('load:elements')) or 0
  if had < first then return end
  local known = had - first
  local torn_list, torn_length = string.match(stored_field('load:list'), '^(.*) (%d+)$')
  local function note(list)
    redis.call('HSET', key.meta, 'load:elements', string.format('%.0f', had), 'load:list', list)
  end
  local function append(list, elements)
    local length = redis.call('LLEN', list)
    if list == torn_list then
      had, known, torn_list = had + length - torn_length, known + length - torn_length, nil
    end
    local skipped = math.min(known, #elements)
    known = known - skipped
    if skipped < #elements then
      note(list .. ' ' .. length)
      in_parts('RPUSH', list, elements, skipped + 1)
      had = had + #elements - skipped
    end
    return #elements - skipped
  end
  return append, function() note('') end
end
-- A new list may have no band yet: no worker would find it.
local function note_band(partition, rank)
  local band = rank_bytes(rank)
  if redis.call('EXISTS', list_of(rank, partition)) == 0 then return end
  if redis.call('HGET', key.bands, partition) == band then return end
  if not redis.call('ZSCORE', key.more_bands, partition .. '\0' .. band) then add_band(partition, rank) end
end
local epoch, shards, owner, label = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local first, items = tonumber(ARGV[5]), cmsgpack.unpack(ARGV[6])
load_sizes()
local ours, owned = state.epoch == epoch, stored_field('load:owner')
if label == 'begin' then
  local replaces, sequence, described = unpack(items)
  -- RACE: a copy of this call arrives after the load is complete, or after another crawl has begun here.
  local over = owned == '' or stored_field('load:ended') ~= ''
  if ours and over or not ours and (state.epoch or '') ~= replaces then return { 'CHANGED' } end
  if ours and owned == owner then return { 'OK', 0 } end
  if not ours then
    clear_run(false)
    redis.call('UNLINK', key.meta, key.dead, key.failed, key.spent, key.stats, key.samples, key.minutes, key.journal)
  end
  -- One command: if this script is stopped after it, no worker takes what there is for the crawl.
  redis.call('HSET', key.meta, 'shards', '0>' .. shards, 'load:owner', owner, unpack(described))
  load_state()
  if stored_field('limits_set') ~= '' then set_limits(stored_field('limits_set')) end
  redis.call('UNLINK', key.limits) -- those that were in force are stored later
  state.sequence = math.max(state.sequence, sequence)
  save_state()
  return { 'OK', 0 }
end
if not ours or owned ~= owner then return { 'CHANGED' } end
if label == 'end' or label == 'tidy' then
  if items[1] then -- this is home
    state.done, state.failed = items[1], items[2]
    redis.call('HSET', key.meta, 'gone', string.format('%.0f', items[3]), 'load:ended', 1)
    if shards ~= '1' then redis.call('HSET', key.meta, 'shards_exist', 1) end
  end
  save_state()
  if shards == '1' then redis.call('HDEL', key.meta, 'shards') else redis.call('HSET', key.meta, 'shards', shards) end
  -- Until home has ended, they are needed if the process is killed, and another one continues.
  if label == 'tidy' then
    redis.call('HDEL', key.meta, 'load:owner', 'load:ended', 'load:elements', 'load:list', 'load:stored')
  end
  return { 'OK', 0 }
end
local function touch(member) touched[string.match(member, '^[^%z]*')] = true end
if label == 'backlog' or IN_ORDER[label] then
  local append, note = appender(first)
  if not append then return { 'GAP' } end
  if label == 'backlog' then
    for i = 1, #items, 3 do
      local rank, partition = items[i], items[i + 1]
      state.waiting = state.waiting + append(list_of(rank, partition), items[i + 2])
      touched[partition] = true
      note_band(partition, rank)
    end
  else
    local added = append(key[label], items)
    if label == 'failed' then state.failed = state.failed + added end
  end
  note()
elseif label == 'returned' or label == 'quarantine' then
  local scored = {}
  for _, member in ipairs(items) do
    scored[#scored + 1], scored[#scored + 2] = 0, member
    touch(member)
  end
  state.waiting = state.waiting + in_parts('ZADD', key[label], scored)
elseif label == 'delayed' then
  state.delayed = state.delayed + in_parts('ZADD', key.delayed, items)
elseif label == 'earliest' or label == 'blocked' then
  polite = true
  in_parts('ZADD', key[label], items)
  for i = 2, #items, 2 do touched[items[i]] = true end
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
