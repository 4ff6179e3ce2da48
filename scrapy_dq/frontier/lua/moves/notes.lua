-- notes: what a worker says with an exchange besides its moves: a request was sent, a site asks for a pause, or
-- requests are gone for good from a shard, so that the run is not complete.
-- ARGS     worker_id, notes: [1, partition, id, age_ms] sent (age_ms false: never), [2, partition, wait_ms] block,
--          [3, shard, count] gone
-- RETURNS  nothing
-- COST     O(notes * log partitions)
-- CRASH    before: the worker sends them again; after: nothing to do
-- `meta.gone_elsewhere` has "<shard>:<count> " of each shard that home was told of: many workers tell the same.
-- @include journal sent block
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
local function apply_notes(worker_id, notes)
  for _, note in ipairs(notes) do
    if note[1] == 1 then sent(worker_id, note[2], note[3], note[4])
    elseif note[1] == 2 then block(note[2], note[3])
    else gone(note[2], note[3])
    end
  end
end
