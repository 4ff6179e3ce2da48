-- state: counts, phase and clock of the run, read once, written once by save_state().
-- waiting and in_flight are changed only where an entry moves (entry.lua, put.lua, lease.lua), in the
-- same atomic script; whether a run is *finished* is decided from the keys themselves (finish.lua).
local state
local seen -- all that is done to what the crawl has seen: kinds.lua
local CLAIMED = '\1' -- the partition of claims (claim.lua): no request has it, and no limit holds for it
local touched = {} -- partitions that something was done to: partition.lua finds out where they belong now
local function load_state()
  local s = redis.call('HMGET', key.meta,
    'epoch', 'run', 'phase', 'sequence', 'waiting', 'in_flight', 'done', 'failed', 'turn', 'clock', 'offset',
    'delay_ms', 'concurrency', 'seen_since', 'limited',
    'seen_kind', 'words', 'stops', 'forgets', 'limitings', 'hold')
  local function number(i) return tonumber(s[i] or 0) end
  state = {
    epoch = s[1], run = number(2), phase = s[3], sequence = number(4), waiting = number(5),
    in_flight = number(6), done = number(7), failed = number(8), turn = number(9), clock = number(10),
    offset = number(11), delay_ms = number(12), concurrency = number(13), seen_since = number(14),
    limited = s[15] == '1', -- whether this run has, or had, any limit: else nothing is counted by partition
    seen_kind = s[16],
    hold = s[21] or '', -- paused, draining, or nothing: nothing is leased while it is there
    -- How often workers were told what; most crawls are never told anything.
    told = s[17] and table.concat({ number(17) or 0, number(18) or 0, number(19) or 0, number(20) or 0 }, ' '),
  }
end
local function save_state()
  redis.call('HSET', key.meta, 'phase', state.phase, 'sequence', state.sequence, 'waiting', state.waiting,
    'in_flight', state.in_flight, 'done', state.done, 'failed', state.failed, 'turn', state.turn,
    'clock', state.clock, 'offset', state.offset)
end
-- A script has no roll-back: a key of a wrong type must be found before the first write.
local function is_wrong(name, expected)
  local actual = redis.call('TYPE', name).ok
  if actual ~= 'none' and actual ~= expected then return { 'WRONG_TYPE', name, actual, expected } end
end
local polite -- whether any key of politeness is there, as far as this script knows
local function wrong_type(worker_id)
  local wrong = is_wrong(key.meta, 'hash')
  if wrong then return wrong end
  if not state then load_state() end
  for name, expected in pairs(key_types) do
    wrong = is_wrong(key[name], expected)
    if wrong then return wrong end
  end
  polite = redis.call('EXISTS', key.suspects, key.resting, key.saturated, key.limits, key.busy, key.unsent,
    key.earliest, key.blocked) > 0
  if polite then
    for name, expected in pairs(polite_types) do
      wrong = is_wrong(key[name], expected)
      if wrong then return wrong end
    end
  end
  wrong = seen.wrong_type()
  if wrong then return wrong end
  if not worker_id then return end
  return is_wrong(worker_key(worker_id), 'hash') or is_wrong(in_flight_key(worker_id), 'hash')
end
-- Every call carries (epoch, run): a worker that slept through the end of its run, or through the
-- loss of the frontier, must change nothing.
local function stale(epoch, run)
  if not state.epoch or state.epoch ~= epoch then return 'LOST' end
  if state.run < run then return 'RESYNC' end
  if state.run > run then return 'FINISHED' end
end
local function census(seeding)
  return { state.waiting, state.in_flight, state.done, redis.call('HLEN', key.dead), seen.count(),
    redis.call('SCARD', key.members), seeding or 0, state.failed, redis.call('ZCARD', key.delayed) }
end
local function wall_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
-- The crawl's own clock: Redis's, but if that steps back (set right, or a failover), it goes on from where
-- it was. Else every partition that rests would rest for as long as the step was.
local now
local function now_ms()
  if not now then
    local wall = wall_ms()
    if wall + state.offset < state.clock then state.offset = state.clock - wall end
    now = wall + state.offset
    state.clock = now
  end
  return now
end
