-- steer: sends a command to all workers of a crawl. Each worker gets it with its next exchange. An idle worker makes an
-- exchange when the answer to its heartbeat (beat.lua) shows that there is a new command.
-- ARGS     action (pause | drain: nothing is leased until resume; stop: all current members close; complete:
--          interrupted start() methods count as complete, and the run is finished if no member and no entry is left;
--          wake: idle workers make an exchange, and nothing else happens), by (the sender, for the journal)
-- RETURNS  OK, phase, hold (empty, paused, draining), members | ABSENT | MOVING, from>to
--          | WRONG_TYPE, key, actual, expected
-- COST     O(1)
-- CRASH    before: nothing; after, reply lost: a repeat also reaches workers that have joined since
-- @include base finish stopped
local action, by = ARGV[1], ARGV[2]
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
local holds = { pause = 'paused', drain = 'draining', resume = '' }
if holds[action] then
  state.hold = holds[action]
  redis.call('HSET', key.meta, 'hold', state.hold)
end
send_command(action == 'stop' and 'stops')
if action ~= 'wake' then note_event(action, by, 1) end
if action == 'complete' then
  local incomplete = incomplete_starts() > 0
  redis.call('HDEL', key.meta, 'starts')
  -- Finish the run here. If a new worker had to do it, that worker would run its own start() first, and could be
  -- interrupted again.
  if incomplete and key_sizes.members == 0 then
    detect_damage()
    -- If there are other shards, home does not know whether they are empty. Then the run does not finish here, and the
    -- next worker asks them.
    finish_if_done(redis.call('HGET', key.meta, 'shards') and -1 or nil)
    save_state()
  end
end
return { 'OK', state.phase, state.hold, redis.call('SCARD', key.members) }
