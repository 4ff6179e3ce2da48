-- damage: detects keys that contradict the counts. Every transition updates keys and counts together, so a
-- contradiction means that keys were deleted or evicted. The calling worker receives the damage and starts an audit
-- (audit.lua).
-- @include bands
local function damaged(what) if state.damage == '' then state.damage = what end end
-- Call this after load_sizes(), which reads the number of members and the size of `seen`.
local function detect_damage()
  if key_sizes.members ~= state.members then damaged('members') end
  if state.seen < 0 then damaged('seen') end
end
-- Returns whether spent budgets can be the reason why partitions are saturated although no worker holds a lease. Only
-- the first ten saturated partitions are examined.
local function saturated_by_budgets()
  local partitions = redis.call('ZRANGE', key.saturated, 0, 9)
  for _, partition in ipairs(partitions) do
    if not is_spent(partition) then return false end
  end
  return #partitions > 0
end
-- Detects entries that no worker would ever lease: their partition is in none of the sets of partition.lua, or it waits
-- for the end of leases that no longer exist. Also detects a partition that rests although it has no entry. COST
-- O(workers) if partitions are saturated
local function detect_stuck_partitions()
  local waiting = state.waiting - (may_exist('declined') and redis.call('ZCARD', key.declined) or 0)
  if waiting == 0 or redis.call('EXISTS', key.rotation, key.suspects) > 0 then return end
  local resting = redis.call('ZRANGE', key.resting, 0, 0)
  if resting[1] and not turns_in(resting[1]) then damaged('rotation') end
  if redis.call('EXISTS', key.saturated) == 0 then
    if not resting[1] then damaged('rotation') end
    return
  end
  local held = 0
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do held = held + leases_of(id) end
  if held == 0 and not saturated_by_budgets() or held < state.in_flight then damaged('entries') end
end
