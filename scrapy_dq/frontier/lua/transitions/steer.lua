-- steer: tell all workers of a crawl what to do. Each hears it with its next exchange; beat.lua wakes the quiet.
-- ARGS     word (pause | drain: nothing is leased until resume; stop: those that are members now close;
--          complete: start() methods that were broken off are as good as done; wake: nothing but that the quiet
--          look what waits)
-- RETURNS  OK, phase, hold (empty, paused, draining), members | ABSENT | WRONG_TYPE, key, actual, expected
-- COST     O(1)
-- CRASH    before: nothing; after, reply lost: to say it again tells whoever joined meanwhile, too
-- USES     keys.key, state, types.wrong_type, words.tell
local word = ARGV[1]
local wrong = wrong_type()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
local holds = { pause = 'paused', drain = 'draining', resume = '' }
if holds[word] then
  state.hold = holds[word]
  redis.call('HSET', key.meta, 'hold', state.hold)
end
if word == 'complete' then redis.call('HDEL', key.meta, 'starts') end
tell(word == 'stop' and 'stops')
return { 'OK', state.phase, state.hold, redis.call('SCARD', key.members) }
