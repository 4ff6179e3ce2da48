-- in turn: the partitions that are served next. Those of which this worker holds nothing come before the others.
-- Returns the candidate partitions in the order of serving.
-- @include entry
local function in_turn(count, here)
  local heads = redis.call('ZRANGE', key.rotation, 0, count - 1, 'WITHSCORES')
  local suspect = polite and not holds_suspect and redis.call('ZRANGE', key.suspects, 0, 0, 'WITHSCORES') or {}
  local free, others = {}, {}
  local function line_up(partition)
    local mine = here[partition]
    if not mine then free[#free + 1] = partition
    elseif mine[2] > 0 then others[#others + 1] = { partition, mine[1], #others } end
  end
  for i = 1, #heads, 2 do
    if suspect[1] and tonumber(suspect[2]) < tonumber(heads[i + 1]) then
      line_up(suspect[1])
      suspect = {}
    end
    line_up(heads[i])
  end
  if suspect[1] then line_up(suspect[1]) end
  table.sort(others, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[3] < b[3] end)
  for _, other in ipairs(others) do free[#free + 1] = other[1] end
  return free
end
