-- described: compares a joining worker's description of the crawl with the description of the run in meta, and stores
-- it there.
-- Arguments: schema, order, seen_kind, fingerprinter, spider, partition_by (each must be equal in all workers; empty:
-- accept the stored value), spider_args, run_name, keep_seen (empty: keep the stored value), seen_ttl_ms (0:
-- fingerprints never expire), limits (msgpack: delay_ms, concurrency, [partition, delay_ms | false, concurrency |
-- false, ...] [, budget, budget_period, {partition: budget}]; empty: keep the stored limits), starts (the name of the
-- worker's start(): starts.lua), shards (how many the crawl has; not stored if 1)
-- @include shared member limits
local FIELDS = { 'schema', 'order', 'seen_kind', 'fingerprinter', 'spider', 'partition_by', 'spider_args', 'run_name',
  'keep_seen', 'seen_ttl_ms', 'limits', 'starts', 'shards' }
local function described(first)
  local ours = {}
  for i, field in ipairs(FIELDS) do ours[field] = ARGV[first + i - 1] end
  return ours
end
-- Returns the names of the fields that must equal the stored ones. If one differs, also returns the answer of the
-- script: DIFFERS, field, stored, ours. In an open run, these fields are the first six arguments and `shards`. After a
-- run (*over*), they are only the fields that determine the meaning and the place of kept keys.
local function agreement(ours, over)
  local fields = { 'shards', 'schema', 'fingerprinter', 'spider', 'order', 'partition_by', 'seen_kind' }
  if over then
    local kept = redis.call('EXISTS', key.seen) == 1 and seen_stays()
    fields = kept and { 'shards', 'schema', 'fingerprinter', 'seen_kind' } or { 'shards', 'schema' }
  end
  for _, field in ipairs(fields) do
    local stored = stored_field(field)
    -- If no order is stored, a program has begun the crawl, and Redis serves the oldest entry first. Another program
    -- (it has no fingerprinter) must accept this order. A worker with a spider sets its own order.
    if stored == '' and state.epoch then
      stored = field == 'order' and ours.fingerprinter == '' and 'fifo' or field == 'shards' and '1' or ''
    end
    -- Empty in `ours`: this worker accepts any value. Empty in `stored`: no worker has set one yet.
    if stored ~= '' and ours[field] ~= '' and stored ~= ours[field] then
      return fields, { 'DIFFERS', field, stored, ours[field] }
    end
  end
  return fields
end
-- Stores the description *ours* for the run state.run.
local function describe(ours)
  -- A program has no spider, so it does not know how the kept fingerprints were made. Keep the stored values.
  for _, field in ipairs(redis.call('EXISTS', key.seen) == 1 and { 'fingerprinter', 'seen_kind' } or {}) do
    if ours[field] == '' then ours[field] = stored_field(field) end
  end
  if ours.keep_seen ~= '' then redis.call('HSET', key.meta, 'keep_seen', ours.keep_seen) end
  if ours.limits ~= '' then set_limits(ours.limits) end
  if ours.shards ~= '1' then redis.call('HSET', key.meta, 'shards', ours.shards) end
  local seen_ttl_ms = tonumber(ours.seen_ttl_ms)
  -- This is one command and the last step. If the script is stopped before it, there is no crawl, or the previous run
  -- is still stored.
  redis.call('HSET', key.meta, 'epoch', state.epoch, 'run', state.run, 'phase', state.phase, 'run_name', ours.run_name,
    'schema', ours.schema, 'order', ours.order, 'seen_kind', ours.seen_kind, 'fingerprinter', ours.fingerprinter,
    'spider', ours.spider, 'partition_by', ours.partition_by, 'spider_args', ours.spider_args,
    'seen_since', seen_ttl_ms > 0 and now_ms() - seen_ttl_ms or 0, 'cleared', 0)
end
