-- shared: whether several workers with a start() share this run. Programs, commands and rejoining workers do not count
-- as further workers. `meta.shared` holds two of them, one per line: id, and its heartbeat at that time.
-- USES     held.fields_of, keys.key
local function stored_field(field) return redis.call('HGET', key.meta, field) or '' end
local function stored_shards() return redis.call('HGET', key.meta, 'shards') or '1' end
local function with_beat(id) return id .. ' ' .. (redis.call('HGET', key.beats, id) or '') end
local function note_shared()
  if stored_field('shared') ~= '' then return end
  local workers = {}
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    local worker = fields_of(id, 'starts', 'fenced')
    if (worker[1] or '') ~= '' and worker[2] == '0' then workers[#workers + 1] = with_beat(id) end
    if #workers > 1 then return redis.call('HSET', key.meta, 'shared', table.concat(workers, '\n')) end
  end
end
-- A worker was declared dead: if its heartbeat has not changed since, it was dead before the other worker joined, which
-- may be one that a supervisor has started to replace it.
local function unshare(id)
  local pair = '\n' .. stored_field('shared') .. '\n'
  if not string.find(pair, '\n' .. with_beat(id) .. '\n', 1, true) then return end
  redis.call('HDEL', key.meta, 'shared')
  note_shared()
end
