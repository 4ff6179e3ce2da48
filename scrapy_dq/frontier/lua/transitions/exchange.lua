-- exchange: applies a prefix of a worker's outbox, in order, and leases entries, in one atomic step.
-- ARGS     worker_id, epoch, run, seq, want, seeding (0 no, 1 yes, 2 its start() has failed, 3 it listens for start
--          payloads, 4 its start() has to run again), held (how many leases the worker believes it has), max_bytes,
--          keep_failed (how many failed requests to keep), terms (see below), moves (endings.lua), registered (from the
--          answer to join or rejoin; 0: any)
-- RETURNS  OK | FINISHED, then: applied (0: the run was over, and nothing was applied), positions (from 0, joined by
--          commas) of puts that were duplicates (such as 4) or were refused because too many entries wait (~4), census,
--          leases (a record of each), waits (ms until each lease may be sent, '' for a lease without such a time; or an
--          empty list if no lease has one), next_due_ms, blocked (the blocked partitions of `here`), wrong key (a start
--          key whose type differs from the setting: key, actual, expected; or nothing), commands (commands.lua), damage
--          (which keys contradict the counts; empty: none), concatenated ids of the leases that any worker has declined
--          | LOST | RESYNC | FINISHED (alone: nothing was applied)
-- COST     O(moves + want) * log partitions, at most 1,000 of each; about 6 ms on an ordinary core, 10 if seen is
--          compact
-- CRASH    before: the worker sends the same bytes again; after, reply lost: the same bytes get the same answer;
--          stopped by an error (stopped.lua): the repeat gets RESYNC if the number of the worker's leases has changed,
--          else it applies the rest; worker dead: its leases are reclaimed and its outbox is lost, but the parents of
--          the puts in this outbox are still in flight
-- The terms are a msgpack array: ahead_ms; most (new leases of a partition that is not in `here`); here ({partition:
-- [held, room]}, see lease.lua); notes (notes.lua); claim (false, or [kind, mark, id_stem]: claim.lua); forget
-- (concatenated ids to remove from `admitted`); finish_at (finish.lua); no_suspects (true: grant no suspect); max_pages
-- (limit of the run's requests that are in flight, or were sent and are done or failed); elsewhere (finish.lua). The
-- array may end before elements without a value, and false stands for no value.
-- @include base delayed notes endings lease claim finish stopped
local worker_id, epoch, run, seq = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local want, seeding, held, max_bytes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local keep_failed, terms, moves, registered = tonumber(ARGV[9]), ARGV[10], ARGV[11], ARGV[12]
load_state()
local answer = stale(epoch, run, worker_id)
if answer then return { answer } end
local record = fields_of(worker_id, 'last_seq', 'fenced', 'quarantined', 'dropped', 'leases', 'done', 'seeding',
  'registered')
if registered ~= '0' and record[8] and record[8] ~= registered then return { 'RESYNC' } end -- see member.lua
local last_seq = tonumber(record[1])
if last_seq == seq then
  -- This is a repeat after a lost reply, because a worker sends no other bytes under this number.
  repeat_grants(worker_id, record[5] or '') -- the leases are still in flight: no other worker can settle them
  local leases, waits = granted()
  local status = state.phase == 'finished' and 'FINISHED' or 'OK'
  return { status, 1, record[4], census(), leases, waits, next_due_ms(), {}, {},
    commands(), '', declined.among(grants.ids) }
end

local puts, positions, endings = read_moves(moves)
local ahead, most, here, notes, claims, forgotten, finish_at, no_suspects, max_pages, elsewhere =
  unpack(cmsgpack.unpack(terms))
if not last_seq or seq ~= last_seq + 1 then return { 'RESYNC' } end
if state.phase == 'finished' and not puts[1] and not raises(finish_at, seeding) then
  remember_nothing(worker_id, seq)
  return { 'FINISHED', 0, '', census(), {}, {}, -1, {}, {}, commands(), '', '' }
end
if record[2] == '1' then return { 'RESYNC' } end
load_sizes(worker_id)
-- After a roll-back of Redis, a late copy of an exchange can have the right number. Only the count of leases reveals
-- such a copy.
if held ~= key_sizes.in_flight then return { 'RESYNC' } end
detect_damage()
raise_level(finish_at, seeding, record[7])

-- The puts come first, so that a full Redis refuses them. After any write, such as an ack, a script may exceed
-- maxmemory.
local dropped = {}
for i, move in ipairs(puts) do
  local refused = put(fields_of_put(move))
  if refused then dropped[#dropped + 1] = (refused == FULL and '~' or '') .. positions[i] end
end
apply_notes(worker_id, notes)
local settled = state.done + state.failed
holds_suspect = record[3] ~= '' and record[3]
settle(worker_id, endings, keep_failed)
holds_suspect = holds_suspect or no_suspects
if forgotten then forget(forgotten) end
tidy(ahead, max_bytes)
tidy_seen()
grants.worker_id, grants.max_bytes = worker_id, max_bytes
if state.hold ~= '' then want, claims = 0, false end
if max_pages then want = math.min(want, max_pages + state.never_sent - state.done - state.failed - state.in_flight) end
-- Check the keys as well, because the stored counts may be wrong.
if want > 0 and (state.waiting > 0 or may_exist('rotation') or may_exist('suspects')) then
  if not (puts[1] or endings[1]) then write_first() end
  -- If the backlog is smaller than the buffers of all workers, each worker takes only its share.
  local share = state.waiting > 0 and math.ceil(state.waiting / key_sizes.members) or want
  want = math.min(want, share)
  -- First grant one entry that another worker has declined. Grant further declined entries only if the backlog leaves
  -- room.
  local got = offer(worker_id, 1, ahead, most, here)
  if want > got then lease(want - got, ahead, most, here) end
  offer(worker_id, want - #grants.ids, ahead, most, here)
  if #grants.ids == 0 then detect_stuck_partitions() end
end
if claims then claim(want, unpack(claims)) end
write_grants()
dropped, settled = table.concat(dropped, ','), state.done + state.failed - settled
start_done(worker_id, seeding, record[7]) -- before `remember`: if the script stops in between, a repeat does this again
remember(worker_id, record, seq, seeding, dropped, settled)
local last = { finish_if_done(finish_at, elsewhere) } -- three numbers for the census
save_partitions()
save_state()
local leases, waits = granted()
return { state.phase == 'finished' and 'FINISHED' or 'OK', 1, dropped, census(unpack(last)), leases,
  waits, next_due_ms(), blocked_among(here, ahead), wrong_key, commands(), state.damage,
  declined.among(grants.ids) }
