-- limit: changes or returns the limits of one partition while the crawl runs. Workers obey with their next exchange.
-- ARGS     partition, delay_ms, concurrency (both: -1 unchanged, -2 the crawl's default, 0 no limit), block_ms (-1
--          unchanged, 0 no block), by (the user or program that changes the limits, for the journal), budget (-1, -2
--          and 0 as for delay_ms)
-- RETURNS  OK, delay_ms, concurrency, block_ms, budget (the new values), spent | ABSENT | MOVING, from>to
--          | WRONG_TYPE, key, actual, expected
-- COST     O(log partitions); the first limit of a run O(in flight)
-- CRASH    before: nothing; after: nothing to do
-- @include base partition limits notes
local partition, delay_ms, concurrency, block_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local by, budget = ARGV[5], tonumber(ARGV[6])
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
local function changed(own, given)
  if given == -2 then return nil end
  return given >= 0 and given or own
end
local given = delay_ms ~= -1 or concurrency ~= -1 or budget ~= -1
if given then
  begin_to_limit()
  local own_delay, own_concurrency, own_budget = own_limits(partition)
  set_own_limits(partition, changed(own_delay, delay_ms), changed(own_concurrency, concurrency),
    changed(own_budget, budget))
  save_limiting()
end
delay_ms, concurrency, budget = limits_of(partition)
local function blocked_ms() return math.max(0, blocked_until(partition) - now_ms()) end
if not given and block_ms < 0 then return { 'OK', delay_ms, concurrency, blocked_ms(), budget, spent_by(partition) } end
if block_ms >= 0 then redis.call('ZREM', key.blocked, partition) end
-- If the partition's wait started under a longer delay, or under a block that is now lifted, shorten it.
local rest = earliest_of(partition)
if rest > now_ms() then
  redis.call('ZREM', key.earliest, partition)
  set_earliest(partition, math.min(rest, now_ms() + delay_ms))
end
if block_ms > 0 then block(partition, block_ms) end
classify(partition, 0)
save_state()
-- Tell the workers that limits have changed, because they have taken the leases in their buffers under the old limits.
if given then send_command('limit_changes') end
local limits = { delay_ms / 1000, concurrency, math.ceil(blocked_ms() / 1000) }
note_event('limit', by, 1, string.format('delay %g s, concurrency %g, blocked %g s: ', unpack(limits)) .. partition)
return { 'OK', delay_ms, concurrency, blocked_ms(), budget, spent_by(partition) }
