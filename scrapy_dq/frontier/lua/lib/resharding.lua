-- resharding: what arrive.lua and depart.lua share.
-- USES     shared.stored_field, state
-- Whether this shard takes part in that reshard, and that process owns it (reshard.lua).
local function is_owned(epoch, change, owner)
  return state.epoch == epoch and stored_field('shards') == change and stored_field('reshard:owner') == owner
end
local PART = 1000 -- even: pairs stay together
-- Calls a command on a key with all *items* from position *first* on, and returns the sum of its answers.
local function in_parts(command, name, items, first)
  local sum = 0
  for i = first or 1, #items, PART do
    sum = sum + redis.call(command, name, unpack(items, i, math.min(i + PART - 1, #items)))
  end
  return sum
end
