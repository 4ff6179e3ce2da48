-- member: register and remove workers; clear what a run leaves behind.
local function register(id, identity)
  redis.call('SADD', key.members, id)
  redis.call('HSET', worker_key(id), 'last_seq', 0, 'seeding', 1, 'fenced', 0, 'identity', identity,
    'quarantined', '', 'dropped', '', 'leases', '')
  redis.call('HSET', key.beats, id, 0)
end
local function remove_member(id)
  redis.call('SREM', key.members, id)
  redis.call('HDEL', key.beats, id)
  redis.call('UNLINK', worker_key(id), in_flight_key(id))
end
-- Every key of the run, named one by one: nothing is found by a pattern.
local function clear_run(keep_seen)
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    redis.call('UNLINK', worker_key(id), in_flight_key(id))
  end
  for _, rank in ipairs(redis.call('ZRANGE', key.bands, 0, -1)) do
    redis.call('UNLINK', backlog_key(rank))
  end
  redis.call('UNLINK', key.members, key.beats, key.seeds, key.admitted, key.bands, key.returned,
    key.quarantine)
  if not keep_seen then redis.call('UNLINK', key.seen) end
  state.waiting, state.in_flight = 0, 0
end
local function next_run(keep_seen)
  clear_run(keep_seen)
  redis.call('UNLINK', key.dead, key.failed)
  state.run, state.phase, state.done = state.run + 1, 'open', 0
  state.failed = 0
  redis.call('HSET', key.meta, 'run', state.run)
end
