-- overview: phase, census and members, read atomically. Changes nothing.
-- ARGS     anyhow (1: what can be read, also if a key has another type, or there are too many members, and without
--          what takes long to read if somebody else wrote it: for a flush), most_members (to read; '': all)
-- RETURNS  phase (absent | open | finished), epoch, run, census, members (flat: id, identity, fenced, in_flight, beat,
--          since, done, waits), words (steer.lua),
--          {run_name, began, ended (of the last run that finished; both in ms)}
--          or WRONG_TYPE, key, actual, expected | TOO_MANY, key, members
-- COST     O(workers), but at most most_members
-- CRASH    nothing to do
-- USES     keys.MOST_MEMBERS, keys.in_flight_key, keys.key, keys.worker_key, starts.incomplete_starts, state,
--          state.census, state.there, types.size_of, types.too_many, types.wrong_type, words
local wrong = wrong_type()
if wrong and ARGV[1] ~= '1' then return wrong end
if wrong then
  there = { members = size_of(key.members, 'set') or 0 }
  state = state or { phase = 'open', waiting = 0, in_flight = 0, done = 0, failed = 0, gone = 0, hold = '' }
end
local most_members = tonumber(ARGV[2]) or 2 * MOST_MEMBERS
local members, seeding = {}, 0
local readable = there.members > 0 and most_members > 0 and not too_many(2 * MOST_MEMBERS)
for at, id in ipairs(readable and redis.call('SMEMBERS', key.members) or {}) do
  if at > most_members then break end
  -- A key of a wrong type hides neither the others nor this member.
  local w = redis.pcall('HMGET', worker_key(id), 'identity', 'fenced', 'seeding', 'since', 'done', 'waits')
  if w[3] == '1' then seeding = seeding + 1 end
  members[#members + 1] = id
  members[#members + 1] = w[1] or '{}'
  members[#members + 1] = w[2] or '0'
  members[#members + 1] = size_of(in_flight_key(id), 'hash') or 0
  local beat = redis.pcall('HGET', key.beats, id)
  members[#members + 1] = type(beat) == 'string' and tonumber(beat) or 0
  members[#members + 1] = w[4] or ''
  members[#members + 1] = w[5] or ''
  members[#members + 1] = w[6] or ''
end
local counts = wrong and { state.waiting, state.in_flight, state.done, 0, 0, there.members, seeding, state.failed, 0,
  state.gone, 0 } or census(seeding, ARGV[1] == '1' and 0 or incomplete_starts())
-- Somebody else may have written any phase, or none.
local phase = redis.call('EXISTS', key.meta) == 0 and 'absent' or state.phase == 'finished' and 'finished' or 'open'
local of_run = redis.pcall('HMGET', key.meta, 'run_name', 'began', 'ended')
return { phase, state.epoch or '', state.run or 0, counts, members, words(), of_run.err and {} or of_run }
