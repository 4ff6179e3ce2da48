-- overview: phase, census and members, read atomically. Changes nothing.
-- ARGS     none
-- RETURNS  phase (absent | open | finished), epoch, run, census, members (flat: id, identity, fenced, in_flight, beat,
--          since, done), words (steer.lua)
--          or WRONG_TYPE, key, actual, expected
-- COST     O(workers)
-- CRASH    nothing to do
-- USES     keys.in_flight_key, keys.key, keys.worker_key, starts.incomplete_starts, state, state.census,
--          types.only_looks, types.size_of, types.wrong_type, words
only_looks = true
local wrong = wrong_type()
if wrong then return wrong end
local members, seeding = {}, 0
for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
  -- A key of a wrong type hides neither the others nor this member.
  local w = redis.pcall('HMGET', worker_key(id), 'identity', 'fenced', 'seeding', 'since', 'done')
  if w[3] == '1' then seeding = seeding + 1 end
  members[#members + 1] = id
  members[#members + 1] = w[1] or '{}'
  members[#members + 1] = w[2] or '0'
  members[#members + 1] = size_of(in_flight_key(id), 'hash') or 0
  members[#members + 1] = tonumber(redis.call('HGET', key.beats, id) or 0) or 0
  members[#members + 1] = w[4] or ''
  members[#members + 1] = w[5] or ''
end
return { state.phase or 'absent', state.epoch or '', state.run or 0, census(seeding, incomplete_starts()), members,
  words() }
