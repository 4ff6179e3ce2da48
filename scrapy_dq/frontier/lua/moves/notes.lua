-- notes: what a worker says with an exchange besides its moves: a request was sent, a site asks for a pause, or another
-- shard has lost for good what this worker had put there.
-- ARGS     worker_id, notes: [1, partition, id, age_ms] sent, [2, partition, wait_ms] block, [3, count] gone
-- RETURNS  nothing
-- COST     O(notes * log partitions)
-- CRASH    before: the worker sends them again; after: nothing to do
-- USES     block, journal.note_event, keys.key, sent, state
local function apply_notes(worker_id, notes)
  for _, note in ipairs(notes) do
    if note[1] == 1 then sent(worker_id, note[2], note[3], note[4])
    elseif note[1] == 2 then block(note[2], note[3])
    else
      state.gone = state.gone + note[2]
      redis.call('HSET', key.meta, 'gone', state.gone)
      note_event('damaged', '', note[2])
    end
  end
end
