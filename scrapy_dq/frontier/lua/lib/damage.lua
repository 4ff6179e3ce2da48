-- damage: detects keys that contradict the counts, although every transition updates both: some keys were deleted or
-- evicted. It is reported to the calling worker, which starts an audit (audit.lua).
-- @include bands
local function damaged(what) if state.damage == '' then state.damage = what end end
-- Run by each exchange: the number of members and the size of `seen` have been read by then.
local function look_for_damage()
  if there.members ~= state.members then damaged('members') end
  if state.seen < 0 then damaged('seen') end
end
-- Whether what is saturated, though nobody holds anything, has spent its budgets: some of it.
local function saturated_by_budgets()
  local some = redis.call('ZRANGE', key.saturated, 0, 9)
  for _, partition in ipairs(some) do
    if not is_spent(partition) then return false end
  end
  return #some > 0
end
-- Detects entries that would never be leased: no set has a partition, one rests without an entry, or some are
-- saturated by leases that are gone and will never be settled. COST O(workers) in this case
local function look_for_partitions()
  local waiting = state.waiting - (is_there('declined') and redis.call('ZCARD', key.declined) or 0)
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
