-- shared: whether at least two workers on different hosts, each with a start(), share this run. Programs, commands and
-- rejoining workers do not count as further workers. `meta.shared` holds two such workers, one per line: the id of the
-- worker, and its heartbeat at the time of writing.
-- @include state
local function stored_field(field) return redis.call('HGET', key.meta, field) or '' end
local function stored_shards() return redis.call('HGET', key.meta, 'shards') or '1' end
local function with_beat(id) return id .. ' ' .. (redis.call('HGET', key.beats, id) or '') end
local function host_of(identity) -- nil: unknown
  return cjson.decode(identity or '{}').host
end
local function note_shared()
  if stored_field('shared') ~= '' then return end
  local first, host
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    local worker = fields_of(id, 'starts', 'fenced', 'identity')
    local counts = (worker[1] or '') ~= '' and worker[2] == '0'
    if counts and not first then
      first, host = with_beat(id), host_of(worker[3])
    elseif counts and host_of(worker[3]) ~= host then
      return redis.call('HSET', key.meta, 'shared', first .. '\n' .. with_beat(id))
    end
  end
end
-- A worker was declared dead. If its heartbeat is still the one in `meta.shared`, it has not beaten since that was
-- written, so it may have been dead when the second worker of the pair joined. A supervisor may have started that
-- worker as its replacement, so the run no longer counts as shared.
local function unshare(id)
  local pair = '\n' .. stored_field('shared') .. '\n'
  if not string.find(pair, '\n' .. with_beat(id) .. '\n', 1, true) then return end
  redis.call('HDEL', key.meta, 'shared')
  note_shared()
end
