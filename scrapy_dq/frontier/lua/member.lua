-- member: register and remove workers; clear what a run leaves behind.
-- One that rejoins brings from its old record since when it works (ms, Redis's clock), and how much it has done.
local function register(id, identity, since, done, suspect)
  midway.registering = id
  redis.call('HSET', worker_key(id), 'last_seq', 0, 'seeding', 1, 'fenced', 0, 'identity', identity,
    'quarantined', suspect or '', 'dropped', '', 'leases', '', 'since', since or wall_ms(), 'done', done or 0)
  redis.call('HSET', key.beats, id, 0)
  redis.call('SADD', key.members, id) -- last: a member has all of these
  midway.registering = nil
end
local function remove_member(id)
  midway.removing = id -- all that it had is elsewhere
  redis.call('SREM', key.members, id)
  redis.call('HDEL', key.beats, id)
  redis.call('UNLINK', worker_key(id), in_flight_key(id))
  midway.removing = nil
end
-- Every key of the run, named one by one: nothing is found by a pattern.
local function clear_run(keep_seen, keep_admitted)
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    redis.call('UNLINK', worker_key(id), in_flight_key(id))
  end
  local function unlink_list(partition, band)
    if #band ~= 8 then return end -- no band: a stranger's
    redis.call('UNLINK', backlog_key(rank_text(unpack_rank(band)), partition))
  end
  local best = redis.call('HGETALL', key.bands)
  for i = 1, #best, 2 do unlink_list(best[i], best[i + 1]) end
  for _, member in ipairs(redis.call('ZRANGE', key.more_bands, 0, -1)) do
    if string.find(member, '\0', 1, true) then unlink_list(split(member, 1)) end
  end
  redis.call('UNLINK', key.members, key.beats, key.bands, key.more_bands, key.returned, key.quarantine,
    key.delayed, key.rotation, key.suspects, key.resting, key.saturated, key.busy, key.unsent, key.earliest,
    key.blocked)
  if not keep_admitted then redis.call('UNLINK', key.seeds, key.admitted) end
  state.waiting, state.in_flight, state.turn, state.claimed = 0, 0, 0, 0
  if not keep_seen then
    drop_seen()
    redis.call('UNLINK', key.adopted)
    state.clock, state.offset = 0, 0 -- what is kept has its times by this clock
  end
end
-- What a worker says of `seen`; one that says nothing goes by what was said last. Nothing at all: it is kept.
local function keeps_seen(said)
  if said == '' then said = redis.call('HGET', key.meta, 'keep_seen') or '1' end
  return said == '1'
end
-- The last worker has left a finished run. What failed can be tried again (retry.lua) until the next run
-- begins: without what makes a put known, that would crawl all of it again.
local function end_run(keep_seen)
  local failed = redis.call('EXISTS', key.failed, key.dead) > 0
  redis.call('HSET', key.meta, 'seen_for', failed and not keep_seen and 'retry' or '')
  clear_run(keep_seen or failed, failed)
end
-- Whether a run that is begun now knows what the finished one has seen.
local function seen_stays() return redis.call('HGET', key.meta, 'seen_for') ~= 'retry' end
-- Who calls it writes run and phase, in one step: until then the last one is finished.
local function next_run(keep_seen)
  clear_run(keep_seen and seen_stays())
  redis.call('HDEL', key.meta, 'seen_for')
  redis.call('UNLINK', key.dead, key.failed, key.stats)
  state.run, state.phase, state.done = state.run + 1, 'open', 0
  state.failed, state.hold = 0, ''
  redis.call('HDEL', key.meta, 'hold')
  -- Nothing is in flight: what limits there are can be counted from here on.
  state.limited = state.delay_ms > 0 or state.concurrency > 0 or redis.call('EXISTS', key.limits) == 1
  save_limiting()
end
