-- half moved: whether a crawl is between two numbers of shards (reshard.lua): what lies where is not known then.
local function half_moved()
  local shards = redis.call('HGET', key.meta, 'shards') or ''
  if string.find(shards, '>', 1, true) then return { 'MOVING', shards } end
end
