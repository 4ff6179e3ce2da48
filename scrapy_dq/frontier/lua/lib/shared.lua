-- shared: records whether two workers on different hosts, each with a start(), have shared this run. Programs and
-- commands do not count, and a worker that rejoins counts once. `meta.shared` has two such workers, one per line, each
-- with its id and its heartbeat at the time of writing.
-- @include state
local function stored_field(field) return redis.call('HGET', key.meta, field) or '' end
local function stored_shards() return redis.call('HGET', key.meta, 'shards') or '1' end
local function with_beat(id) return id .. ' ' .. (redis.call('HGET', key.beats, id) or '') end
local function host_of(identity) -- nil: the host is unknown
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
-- Checks the pair in `meta.shared` after a worker was declared dead. If this worker is one of the two and its heartbeat
-- is unchanged, it may already have been dead when the second worker joined. Then a supervisor may have started the
-- second worker to replace it. So the run no longer counts as shared, unless it has another pair.
local function unshare(id)
  local pair = '\n' .. stored_field('shared') .. '\n'
  if not string.find(pair, '\n' .. with_beat(id) .. '\n', 1, true) then return end
  redis.call('HDEL', key.meta, 'shared')
  note_shared()
end
