-- tally: adds a worker's stats since its last report to the sums of all workers. No entry moves.
-- ARGS     source (identifies the worker, and stays the same when it rejoins), epoch, run, number (of this report; each
--          new report has the next number), deltas (msgpack array: kind (sum, max, min), stat, decimal number, ...)
-- RETURNS  OK, counted (0: the report with this number was counted before) | LOST | RESYNC | FINISHED (nothing changed)
-- COST     O(deltas)
-- CRASH    before, or reply lost: the worker repeats the report with the same number, and it counts once; worker dead:
--          the stats that it has not reported are not counted; stopped by an error: the rest of this report is not
--          counted
-- @include base
local source, number = ARGV[1], tonumber(ARGV[4])
load_sizes()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
local number_field = 'told:' .. source
if (tonumber(redis.call('HGET', key.stats, number_field) or 0) or 0) >= number then return { 'OK', 0 } end
redis.call('HSET', key.stats, number_field, number)
local deltas = cmsgpack.unpack(ARGV[5])
for i = 1, #deltas, 3 do
  local kind, field, delta = deltas[i], deltas[i] .. ':' .. deltas[i + 1], deltas[i + 2]
  if kind == 'sum' then
    -- If the stored value is not a number, or the sum is too large, the value stays: only this stat is wrong.
    local sum = redis.pcall('HINCRBY', key.stats, field, delta)
    if type(sum) == 'table' then redis.pcall('HINCRBYFLOAT', key.stats, field, delta) end
  else
    local stored = redis.call('HGET', key.stats, field)
    local old, new = tonumber(stored), tonumber(delta)
    if not stored or (old and ((kind == 'max' and new > old) or (kind == 'min' and new < old))) then
      redis.call('HSET', key.stats, field, delta)
    end
  end
end
return { 'OK', 1 }
