-- partition: moves partitions between four ZSETs. A partition with waiting entries is in one of them; any other
-- partition is in none.
--   rotation   may be served; score: its turn; the partition that was served longest ago comes first
--   suspects   may be served, but all its waiting entries are in quarantine, so a worker that holds a suspect skips it;
--              score: its turn
--   resting    must wait until the time in its score (ms)
--   saturated  must wait until one of its leases is settled or sent, or until the next run if its budget is spent
-- @include bands
local PLACES = { 'rotation', 'suspects', 'resting', 'saturated' }
local function put_into(partition, where, score)
  -- Add first, then remove: if the script is stopped in between, the partition is in both sets until its next turn.
  if where then redis.call('ZADD', key[where], unpack(score)) end
  for _, name in ipairs(PLACES) do
    if name ~= where and (polite or name == 'rotation') then redis.call('ZREM', key[name], partition) end
  end
  polite = polite or where and where ~= 'rotation'
end
local function next_turn()
  state.turn = state.turn + 1
  return state.turn
end
-- Moves a partition to the right set. It may be served *ahead* ms before its time. *served*: true: the partition was
-- just served, so it gets the last turn; else it keeps its turn, or gets the last one if it has none.
local function classify(partition, ahead, served)
  local where = turns_in(partition)
  if not where then return put_into(partition, nil) end
  if is_saturated(partition) then
    if state.budget_period == 2 and is_spent(partition) then -- until the next day
      return put_into(partition, 'resting', { now_ms() + DAY_MS - wall_ms() % DAY_MS, partition })
    end
    return put_into(partition, 'saturated', { 0, partition })
  end
  local earliest = earliest_of(partition)
  if earliest > 0 and earliest > now_ms() + ahead then
    return put_into(partition, 'resting', { earliest, partition })
  end
  local turn = { next_turn(), partition }
  if not served then table.insert(turn, 1, 'NX') end
  put_into(partition, where, turn)
end
local function classify_touched(ahead)
  local names = {}
  for partition in pairs(touched) do names[#names + 1] = partition end
  table.sort(names) -- the order of pairs() varies
  for _, partition in ipairs(names) do classify(partition, ahead) end
  touched = {}
end
-- Marks partitions that may be served within *ahead* ms, so that classify_touched() returns them to the rotation.
local function wake_resting(ahead)
  local due = redis.call('ZRANGEBYSCORE', key.resting, '-inf', now_ms() + ahead,
    'LIMIT', 0, 500)
  for _, partition in ipairs(due) do touched[partition] = true end
end
