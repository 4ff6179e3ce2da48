-- sums: the stats of all workers, added up.
-- Adds *deltas* (flat: kind, stat, decimal number).
-- @include rights
local function add_up(deltas)
  for i = 1, #deltas, 3 do
    local kind, field, delta = deltas[i], deltas[i] .. ':' .. deltas[i + 1], deltas[i + 2]
    if kind == 'sum' then
      -- A stored value that is not a number, or a sum that is too large, leaves it unchanged: only this stat is wrong.
      local sum = redis.pcall('HINCRBY', key.stats, field, delta)
      if type(sum) == 'table' and not is_denied(sum.err) then
        sum = redis.pcall('HINCRBYFLOAT', key.stats, field, delta)
      end
      if type(sum) == 'table' and is_denied(sum.err) then error(sum.err, 0) end
    else
      local stored = redis.call('HGET', key.stats, field)
      local old, new = tonumber(stored), tonumber(delta)
      if not stored or (old and ((kind == 'max' and new > old) or (kind == 'min' and new < old))) then
        redis.call('HSET', key.stats, field, delta)
      end
    end
  end
end
