-- described: what a worker says of the crawl as it joins, and what the run that begins with it is.
-- Arguments: schema, order, seen_kind, fingerprinter, spider, partition_by (each of which must agree between workers;
-- empty: this one goes by whatever is stored), spider_args, run_name, keep_seen (empty: as a spider's worker had it),
-- seen_ttl_ms (0: for ever), limits (msgpack: delay_ms, concurrency, [partition, delay_ms | false, concurrency | false,
-- ...]; empty: as they are), starts (the name of its start(): starts.lua), signing (the names of its signing keys, of
-- which the first one signs; "no": none)
-- USES     keys.key, limits.set_limits, shared.stored_field, state, state.now_ms
local SAID = { 'schema', 'order', 'seen_kind', 'fingerprinter', 'spider', 'partition_by', 'spider_args', 'run_name',
  'keep_seen', 'seen_ttl_ms', 'limits', 'starts', 'signing' }
local function described(first)
  local ours = {}
  for i, field in ipairs(SAID) do ours[field] = ARGV[first + i - 1] end
  ours.verifies, ours.signing = ours.signing, string.match(ours.signing, '^%S*')
  return ours
end
-- Whether a worker that is *ours* can take part in a run that has *stored* here.
local function agrees(ours, field, stored)
  -- Empty: this worker goes by whatever is stored; or none was there yet that had one.
  if stored == '' or ours[field] == '' or stored == ours[field] then return true end
  return field == 'signing' and string.find(' ' .. ours.verifies .. ' ', ' ' .. stored .. ' ', 1, true)
end
-- The run of state.run is what *ours* says from now on.
local function describe(ours)
  -- A program without a spider does not know by what the fingerprints were made that stay.
  for _, field in ipairs(redis.call('EXISTS', key.seen) == 1 and { 'fingerprinter', 'seen_kind' } or {}) do
    if ours[field] == '' then ours[field] = stored_field(field) end
  end
  if ours.keep_seen ~= '' then redis.call('HSET', key.meta, 'keep_seen', ours.keep_seen) end
  if ours.limits ~= '' then set_limits(ours.limits) end
  local seen_ttl_ms = tonumber(ours.seen_ttl_ms)
  -- In one step, as the last: before it there is no crawl, or the run before.
  redis.call('HSET', key.meta, 'epoch', state.epoch, 'run', state.run, 'phase', state.phase, 'run_name', ours.run_name,
    'schema', ours.schema, 'order', ours.order, 'seen_kind', ours.seen_kind, 'fingerprinter', ours.fingerprinter,
    'spider', ours.spider, 'partition_by', ours.partition_by, 'spider_args', ours.spider_args,
    'signing', ours.signing,
    'seen_since', seen_ttl_ms > 0 and now_ms() - seen_ttl_ms or 0, 'cleared', 0)
end
