-- damage: keys that contradict the counts, which every transition changes with them: some were deleted, or
-- evicted. Whoever made this call is told, and sees to an audit (audit.lua).
-- USES     keys.in_flight_key, keys.key, state, state.there
local function damaged(what) if state.damage == '' then state.damage = what end end
-- Looked at by each exchange: how many members there are, and whether `seen` is there, is known by then.
local function look_for_damage()
  if there.members ~= state.members then damaged('members') end
  if state.seen < 0 then damaged('seen') end
end
-- Something waits, and nobody would ever lease it: no partition is anywhere, or all are saturated by leases that are
-- gone, of which none will ever be settled. COST O(workers) if all are saturated
local function look_for_partitions()
  if state.waiting == 0 or redis.call('EXISTS', key.rotation, key.suspects, key.resting) > 0 then return end
  if redis.call('EXISTS', key.saturated) == 0 then return damaged('rotation') end
  local held = 0
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do held = held + redis.call('HLEN', in_flight_key(id)) end
  if held < state.in_flight then damaged('entries') end
end
