-- notes: applies the reports that a worker sends beside the moves of an exchange.
-- @include politeness journal
-- sent: the request of a lease was sent. If the lease is the last one of a stint (politeness.lua), the partition's
-- delay starts at the time of sending, and workers may lease from the partition again.
-- ARGS     worker_id, partition, id, age (ms since the sending, by the worker's clock; false: it will never be sent)
-- RETURNS  nothing
-- COST     O(log partitions)
-- CRASH    before: the partition waits until the lease is settled or reclaimed; after: nothing to do
local function sent(worker_id, partition, id, age)
  -- If the lease was reclaimed, another worker may hold it now, and may not have sent its request yet.
  if redis.call('HEXISTS', in_flight_key(worker_id), id) == 0 then return end
  end_stint(partition, id, age)
  touched[partition] = true
end
-- block: all workers leave a partition alone for a time. If it has a block that ends later, nothing changes.
-- ARGS     partition, wait_ms
-- RETURNS  nothing
-- COST     O(log partitions)
-- CRASH    before: the worker sends the note again, or, if it is dead, the site asks again; after: nothing to do
local function block(partition, wait_ms)
  local until_ms = now_ms() + wait_ms
  if until_ms <= blocked_until(partition) then return end
  set_earliest(partition, math.max(until_ms, earliest_of(partition)))
  redis.call('ZADD', key.blocked, until_ms, partition)
  touched[partition] = true
end
-- gone: home adds the losses of another shard to its own. Many workers report the same losses. So `meta.gone_elsewhere`
-- stores "<shard>:<count> " for each reported shard, and home adds only the increase.
-- ARGS     shard, count (of all losses of the shard in this run)
-- RETURNS  nothing
-- COST     O(shards)
-- CRASH    before: the worker sends the note again; after: nothing to do
local function gone(shard, count)
  local known, others = 0, ''
  for of, was in string.gmatch(redis.call('HGET', key.meta, 'gone_elsewhere') or '', '(%d+):(%d+) ') do
    if tonumber(of) == shard then known = tonumber(was) else others = others .. of .. ':' .. was .. ' ' end
  end
  if count <= known then return end
  state.gone = state.gone + count - known
  redis.call('HSET', key.meta, 'gone', state.gone, 'gone_elsewhere', string.format('%s%d:%.0f ', others, shard, count))
  note_event('damaged', '', count - known)
end
-- notes: applies the notes of an exchange. A note reports that a request was sent, that a site asks for a pause, or
-- that a shard has lost requests.
-- ARGS     worker_id, notes: [1, partition, id, age_ms] sent (age_ms false: never), [2, partition, wait_ms] block,
--          [3, shard, count] gone
-- RETURNS  nothing
-- COST     O(notes * log partitions)
-- CRASH    before: the worker sends the notes again; after: nothing to do
local function apply_notes(worker_id, notes)
  for _, note in ipairs(notes) do
    if note[1] == 1 then sent(worker_id, note[2], note[3], note[4])
    elseif note[1] == 2 then block(note[2], note[3])
    else gone(note[2], note[3])
    end
  end
end
