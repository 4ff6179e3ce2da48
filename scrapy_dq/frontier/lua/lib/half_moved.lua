-- half moved: whether a crawl is between two places: half imported (load.lua), or frozen while it moves (freeze.lua).
-- @include keys
local function half_moved()
  local shards = redis.call('HGET', key.meta, 'shards') or ''
  if string.find(shards, '>', 1, true) then return { 'MOVING', shards } end
end
