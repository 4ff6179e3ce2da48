-- state: the counts and the phase of the run, read once, written once by save_state().
-- waiting and in_flight are changed only where an entry moves (entry.lua, put.lua, lease.lua), in the
-- same atomic script; whether a run is *finished* is decided from the keys themselves (finish.lua).
local state
local function load_state()
  local s = redis.call('HMGET', key.meta,
    'epoch', 'run', 'phase', 'sequence', 'waiting', 'in_flight', 'done', 'failed')
  state = {
    epoch = s[1], run = tonumber(s[2] or 0), phase = s[3], sequence = tonumber(s[4] or 0),
    waiting = tonumber(s[5] or 0), in_flight = tonumber(s[6] or 0), done = tonumber(s[7] or 0),
    failed = tonumber(s[8] or 0),
  }
end
local function save_state()
  redis.call('HSET', key.meta, 'phase', state.phase,
    'sequence', string.format('%.0f', state.sequence), 'waiting', string.format('%.0f', state.waiting),
    'in_flight', string.format('%.0f', state.in_flight), 'done', string.format('%.0f', state.done),
    'failed', string.format('%.0f', state.failed))
end
-- Every call carries (epoch, run): a worker that slept through the end of its run, or through the
-- loss of the frontier, must change nothing.
local function stale(epoch, run)
  if not state.epoch or state.epoch ~= epoch then return 'LOST' end
  if state.run < run then return 'RESYNC' end
  if state.run > run then return 'FINISHED' end
end
local function census(seeding)
  return { state.waiting, state.in_flight, state.done, redis.call('HLEN', key.dead),
    redis.call('SCARD', key.seen), redis.call('SCARD', key.members), seeding or 0, state.failed }
end
local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
