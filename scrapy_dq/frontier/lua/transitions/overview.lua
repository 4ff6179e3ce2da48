-- overview: returns phase, census and members, read in one atomic step. Changes nothing.
-- ARGS     most_members (how many members to read at most; '': all)
-- RETURNS  phase (absent | open | finished), epoch, run, census, members (flat: id, identity, fenced, in_flight, beat,
--          since, done, waits (see report.lua), ...), commands (commands.lua), {run_name, began (ms), ended (ms; when
--          the last finished run ended), schema}
-- COST     O(workers); reads the records of at most most_members
-- CRASH    nothing to do
-- @include base starts
load_sizes()
local most_members = tonumber(ARGV[1]) or math.huge
local members, seeding = {}, 0
for at, id in ipairs(most_members > 0 and redis.call('SMEMBERS', key.members) or {}) do
  if at > most_members then break end
  local w = fields_of(id, 'identity', 'fenced', 'seeding', 'since', 'done', 'waits')
  if w[3] == '1' then seeding = seeding + 1 end
  local beat = tonumber(redis.call('HGET', key.beats, id) or 0)
  for _, part in ipairs({ id, w[1] or '{}', w[2] or '0', leases_of(id), beat, w[4] or '', w[5] or '', w[6] or '' }) do
    members[#members + 1] = part
  end
end
local of_run = redis.call('HMGET', key.meta, 'run_name', 'began', 'ended', 'schema')
return { state.epoch and state.phase or 'absent', state.epoch or '', state.run, census(seeding, incomplete_starts()),
  members, commands(), of_run }
