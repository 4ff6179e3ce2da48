-- beats: a worker increments its heartbeat and reads the heartbeats of all workers. No clock is involved.
-- @include keys
local PART = 1000
-- Returns the answer of beat.lua, and whether the worker is a member. *observe*: see beat.lua.
local function beat(worker_id, epoch, observe)
  local meta = redis.call('HMGET', key.meta, 'epoch', 'told')
  if meta[1] ~= epoch then return { 'LOST' }, false end
  local commands = tonumber(string.match(meta[2] or '', '^%d+') or 0)
  local is_registered = redis.call('SISMEMBER', key.members, worker_id) == 1
  if is_registered then
    -- This HDEL changes nothing. But a full Redis allows it, and lets a script exceed maxmemory after its first write.
    -- So a worker that waits for memory can still show that it is alive, and report why it waits.
    redis.pcall('HDEL', key.beats, '')
    redis.call('HINCRBY', key.beats, worker_id, 1)
  end
  if observe ~= '1' then return { 'OK', {}, commands }, is_registered end
  local members, beats = redis.call('SMEMBERS', key.members), {}
  for from = 1, #members, PART do
    local last = math.min(from + PART - 1, #members)
    local counts = redis.call('HMGET', key.beats, unpack(members, from, last))
    for i = from, last do
      local id, count = members[i], counts[i - from + 1]
      -- The heartbeat was deleted or evicted. Restore it: otherwise no worker would ever see that this member is dead.
      if not count then redis.call('HSET', key.beats, id, 0) end
      beats[#beats + 1] = id
      beats[#beats + 1] = count or '0'
    end
  end
  return { 'OK', beats, commands }, is_registered
end
