-- member: registers and removes workers, and clears the keys of a run.
-- @include kinds entry starts
-- Registers a worker. *ours*: its description of the crawl (described.lua). *suspect*: the id of the suspect that it
-- holds, if any.
-- A worker that rejoins keeps four fields of its *old* record: since (when it joined, in ms of Redis's clock), done,
-- joined (the number that next_event() gave to its first join; 0: lost), and offered (lease.lua; Redis offers nothing
-- to a program, so a program has no such field). *came_from*: the number of its last exchange under its old id.
-- Every exchange contains the value of the field `registered`, and Redis compares it with the record. Otherwise, after
-- a worker has left, a late copy of its join or rejoin could register it again, and Redis would then apply a late copy
-- of its first exchange again.
local function register(id, identity, ours, old, suspect, came_from, seeding)
  if ours.shards ~= '1' then state.sequence = state.sequence + 1 end -- the worker may seed: see Census.version
  redis.call('HSET', worker_key(id), 'last_seq', 0, 'seeding', seeding or 1, 'fenced', 0,
    'identity', identity, 'quarantined', suspect or '', 'dropped', '', 'leases', '',
    'since', old and old.since or wall_ms(), 'done', old and old.done or 0, 'starts', ours.starts,
    'joined', old and (old.joined or 0) or next_event(), 'registered', wall_us())
  if came_from then redis.call('HSET', worker_key(id), 'came_from', came_from) end
  if ours.spider ~= '' then redis.call('HSET', worker_key(id), 'offered', old and old.offered or 0) end
  redis.call('HSET', key.beats, id, 0)
  state.members = state.members + redis.call('SADD', key.members, id) -- last: every member has the keys above
end
local function registered_at(id) return tonumber(redis.call('HGET', worker_key(id), 'registered')) or 0 end
local function remove_member(id)
  state.members = state.members - redis.call('SREM', key.members, id)
  redis.call('HDEL', key.beats, id)
  redis.call('UNLINK', worker_key(id), in_flight_key(id))
end
-- Unlinks all keys of the run. It makes their names, so it needs no search by pattern.
local function clear_run(keep_seen, keep_admitted)
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    redis.call('UNLINK', worker_key(id), in_flight_key(id))
  end
  local function unlink_list(partition, band)
    redis.call('UNLINK', backlog_key(rank_text(unpack_rank(band)), partition))
  end
  local best = redis.call('HGETALL', key.bands)
  for i = 1, #best, 2 do unlink_list(best[i], best[i + 1]) end
  for _, member in ipairs(redis.call('ZRANGE', key.more_bands, 0, -1)) do
    unlink_list(split(member, 1))
  end
  redis.call('UNLINK', key.members, key.beats, key.bands, key.more_bands, key.returned, key.quarantine,
    key.declined, key.delayed, key.rotation, key.suspects, key.resting, key.saturated, key.busy, key.unsent,
    key.earliest, key.blocked, key.messages, key.accused)
  if not keep_admitted and state.budget_period ~= 2 then redis.call('UNLINK', key.spent) end
  if not keep_admitted then redis.call('UNLINK', key.seeds, key.admitted, key.absent, key.decliners) end
  state.waiting, state.in_flight, state.delayed, state.members, state.turn, state.claimed = 0, 0, 0, 0, 0, 0
  state.seen = 0 -- so that a smaller seen set does not count as damage
  if not keep_seen then
    drop_seen()
    redis.call('UNLINK', key.adopted)
    state.clock, state.offset = 0, 0 -- only a kept `seen` has times of this clock
  end
end
-- Returns whether the crawl keeps `seen`. *choice*: the worker's choice; empty: the stored choice, or yes if no choice
-- is stored.
local function keeps_seen(choice)
  if choice == '' then choice = redis.call('HGET', key.meta, 'keep_seen') or '1' end
  return choice == '1'
end
-- Clears a finished run when its last worker has left. If there are failed requests, dead letters or absent workers,
-- the tokens of puts stay until the next run starts. Without the tokens, a retry or a returning worker would crawl
-- everything again. *kept*: another shard has failed requests or dead letters, so this shard also keeps its tokens.
local function end_run(keep_seen, kept)
  kept = kept or redis.call('EXISTS', key.failed, key.dead, key.absent) > 0
  redis.call('HSET', key.meta, 'seen_for', kept and not keep_seen and 'retry' or '', 'cleared', kept and 0 or 1)
  clear_run(keep_seen or kept, kept)
end
-- Returns whether a run that starts now keeps the present seen set. It does not keep a set that was left for a retry.
local function seen_stays() return redis.call('HGET', key.meta, 'seen_for') ~= 'retry' end
-- Decides whether a joining worker belongs to the finished run. Returns -1 if the run has the worker's run name. If the
-- worker seems to be a worker of this run that exited or was killed when the run ended, and that a supervisor has
-- restarted, returns how many ms ago the run ended. Otherwise returns false.
local function ended_ms_ago(ours, restart_ms)
  local was = redis.call('HMGET', key.meta, 'run_name', 'spider', 'spider_args', 'shared', 'ended')
  if state.gone > 0 then return false end
  if ours.run_name ~= '' then return ours.run_name == was[1] and -1 end
  local ago_ms = wall_ms() - (tonumber(was[5]) or 0)
  return ago_ms >= 0 and ago_ms < restart_ms and was[4] and ours.spider == was[2]
    and (ours.spider_args == was[3] or stored_starts()[ours.starts] == 'done') and ago_ms
end
-- Prepares the next run. The field `ended` of the previous run stays. The previous run counts as finished until the
-- caller writes the new run and phase in one command.
local function next_run(keep_seen)
  clear_run(keep_seen and seen_stays())
  redis.call('HDEL', key.meta, 'seen_for', 'shared', 'starts', 'gone', 'gone_elsewhere', 'hold', 'crawled',
    'sampled', 'never_sent', 'unserved', 'torn')
  redis.call('HSET', key.meta, 'began', wall_ms())
  redis.call('UNLINK', key.dead, key.failed, key.stats)
  state.run, state.phase, state.done = state.run + 1, 'open', 0
  state.failed, state.hold, state.gone, state.never_sent, state.unserved = 0, '', 0, 0, 0
  -- Nothing is in flight, so the counts by partition can begin at 0 if the new run needs them.
  state.limited = state.delay_ms > 0 or state.concurrency > 0 or state.budget > 0
    or state.budget_period == 2 or redis.call('EXISTS', key.limits) == 1
  save_limiting()
end
