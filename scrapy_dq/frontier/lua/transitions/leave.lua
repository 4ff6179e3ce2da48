-- leave: a worker's leases -> their places in the backlog; no attempt is charged. Then the member is removed.
-- The last worker to leave a finished run unlinks the run's keys, except meta (the tombstone), limits, stats, the
-- history, a `seen` that is kept, and the data for a retry.
-- ARGS     worker_id, epoch, run, keep_seen (as in join.lua), version (state.sequence of this shard when the run was
--          over; -1: the run is not over, or this is home), kept (1: another shard has failed requests or dead
--          letters), began (0: the worker's start() has not begun, because the worker could not join another shard),
--          reason (why the worker closes, for the journal)
-- RETURNS  OK, released, last (1: no member is left), litter (1: call sweep.lua for `discarded`), the name of the
--          worker's start() if leaving interrupts it (starts.lua) | LOST | RESYNC | FINISHED
-- COST     O(leases)
-- CRASH    before: the worker is fenced and drained like a dead one; after: nothing to do
-- @include base partition member endings samples stopped
local worker_id = ARGV[1]
load_state()
local answer = stale(ARGV[2], tonumber(ARGV[3]))
if answer then return { answer } end
load_sizes()
local began = ARGV[7] ~= '0'
local broken = began and start_broken(worker_id) or ''
local starts = fields_of(worker_id, 'starts')[1] or ''
local ids = redis.call('HKEYS', in_flight_key(worker_id))
if ids[1] then write_first() end
for _, id in ipairs(ids) do release(worker_id, id, read_lease(worker_id, id)) end
remove_member(worker_id)
classify_touched(0)
save_partitions()
local last = redis.call('SCARD', key.members) == 0 and 1 or 0
if starts ~= '' and last == 1 then
  local found = sampled()
  sample(found, true)
  save_sampled(found)
end
-- If *version* is given, home has finished the run. If this shard was rolled back after that, it may have leased pages
-- again that were done before. Their entries are not needed any more. If a retry had added entries since the run was
-- over, `state.sequence` would be larger than *version*, and the run would not be over here.
local version = tonumber(ARGV[5])
local over = version >= state.sequence
if last == 1 and (over or state.phase == 'finished' and #ids == 0) then
  state.phase = 'finished'
  end_run(keeps_seen(ARGV[4]), ARGV[6] == '1')
end
save_state()
if starts ~= '' then note_event('left', worker_id, #ids, ARGV[8]) end
return { 'OK', #ids, last, redis.call('EXISTS', key.discarded), broken }
