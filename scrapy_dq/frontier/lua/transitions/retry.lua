-- retry: failed request or dead letter -> backlog, at its place and with 0 attempts; finished -> open again.
-- ARGS     epoch, run, failed (msgpack array: record, position, ...; positions count from the tail, which is -1), dead
--          (msgpack array of ids), by (the user or program that retries them, for the journal), open (1: open the run
--          even if this call moves nothing)
-- RETURNS  OK, how many were moved from failed, how many from dead (missing records are skipped)
--          | LOST | RESYNC | FINISHED | MOVING, from>to | WRONG_TYPE, key, actual, expected: nothing was changed
-- COST     O(kept failed requests), and O(log returned) for each record; at most 100 records
-- CRASH    before: nothing; after: the record is gone, so a repeat changes nothing
-- @include base partition messages journal stopped
local epoch, run, failed, dead, by, open = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
load_state()
local answer = stale(epoch, tonumber(run))
if answer then return { answer } end
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
-- Returns the fields of a record, and the lease that it contains from field *from* on.
local function read(record, from)
  local fields = cmsgpack.unpack(record)
  return fields, { place = fields[from], payload = fields[from + 1], partition = fields[from + 2], attempts = 0 }
end
-- Returns the position of a record; nothing if it is gone. It tries *position* first, because a search among 10,000
-- records takes 0.5 ms.
local function find(record, position)
  if redis.call('LINDEX', key.failed, position) == record then return position end
  return redis.call('LPOS', key.failed, record) -- the list was trimmed at its tail, because more requests have failed
end
local function begin()
  if state.phase == 'finished' then -- a hold ends with the run
    redis.call('HDEL', key.meta, 'hold')
    state.hold = ''
  end
  open_run()
end
local from_failed, from_dead = 0, 0
failed = cmsgpack.unpack(failed)
for i = 1, #failed, 2 do
  local position = find(failed[i], failed[i + 1])
  if position then
    local fields, lease = read(failed[i], 7)
    begin()
    put_back('returned', fields[1], lease)
    redis.call('LSET', key.failed, position, '') -- a placeholder: no position changes
    state.failed = math.max(0, state.failed - 1)
    count_message(lease.payload, 1)
    from_failed = from_failed + 1
  end
end
if from_failed > 0 then redis.call('LREM', key.failed, 0, '') end
for _, id in ipairs(cmsgpack.unpack(dead)) do
  local record = redis.call('HGET', key.dead, id)
  if record then
    local _, lease = read(record, 5)
    begin()
    put_back('returned', id, lease)
    redis.call('HDEL', key.dead, id)
    count_message(lease.payload, 1)
    if may_exist('decliners') and redis.call('HDEL', key.decliners, id) == 1 then -- every worker may try it again
      state.unserved = math.max(0, state.unserved - 1)
      redis.call('HSET', key.meta, 'unserved', state.unserved)
    end
    from_dead = from_dead + 1
  end
end
if from_failed + from_dead > 0 or open == '1' then
  begin()
  state.sequence = state.sequence + 1 -- see Census.version
  send_command() -- wake workers that are idle because nothing was waiting
end
classify_touched(0)
save_state()
if from_failed + from_dead > 0 then note_event('retry', by, from_failed + from_dead) end
return { 'OK', from_failed, from_dead }
