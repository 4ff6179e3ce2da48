-- damage: keys that contradict the counts, which every transition changes with them: some were deleted, or
-- evicted. Whoever made this call is told, and sees to an audit (audit.lua).
local function damaged(what) if state.damage == '' then state.damage = what end end
-- Looked at by each exchange: how many members there are, and whether `seen` is there, is known by then.
local function look_for_damage()
  if there.members ~= state.members then damaged('members') end
  if state.seen < 0 then damaged('seen') end
end
-- Something waits, and no partition is anywhere: nobody would ever lease it.
local function look_for_partitions()
  if state.waiting > 0 and redis.call('EXISTS', key.rotation, key.suspects, key.resting, key.saturated) == 0 then
    damaged('rotation')
  end
end
