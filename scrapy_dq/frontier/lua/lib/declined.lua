-- declined: keeps entries that a worker has declined, because its code cannot serve them. They wait apart from the
-- backlog, and each has a number. Redis offers each of them once to every other worker. The field `offered` of a
-- worker's record is the number of the last entry that Redis has offered to this worker (lease.lua).
-- The key `decliners` has a record of each such entry, until the entry is done, failed or buried. If no worker could
-- serve the entry and it became a dead letter, the record stays until the next run. If a worker gives the entry back,
-- Redis does not offer it to the workers in the record again.
-- @include entry
local declined = {}
-- Returns a name that a worker keeps when it rejoins: the number that its first join got (`joined`, see member.lua), or
-- its id if that number is lost.
function declined.lasting_id(worker_id)
  local joined = redis.call('HGET', worker_key(worker_id), 'joined')
  return joined and joined ~= '0' and joined or worker_id
end
-- Returns the record of an entry; nothing if no worker has declined it.
function declined.of(id)
  local stored = may_exist('decliners') and redis.call('HGET', key.decliners, id)
  return stored and cmsgpack.unpack(stored)
end
function declined.by(worker_id, id)
  local of, lasting_id = declined.of(id) or {}, declined.lasting_id(worker_id)
  for i = 4, #of do
    if of[i] == lasting_id then return true end
  end
  return false
end
function declined.note(worker_id, id, reason, fingerprint)
  local of = declined.of(id) or { reason, worker_id, fingerprint }
  of[#of + 1] = declined.lasting_id(worker_id)
  redis.call('HSET', key.decliners, id, cmsgpack.pack(of))
  note_added('decliners')
end
-- Returns the concatenated ids of those entries in *ids* that any worker has declined.
function declined.among(ids)
  local found, of = {}, ids[1] and may_exist('decliners') and redis.call('HMGET', key.decliners, unpack(ids)) or {}
  for i = 1, #ids do found[#found + 1] = of[i] and ids[i] or nil end
  return table.concat(found)
end
-- Deletes the records of entries whose work has ended.
function declined.forget(ids)
  if may_exist('decliners') and ids[1] then redis.call('HDEL', key.decliners, unpack(ids)) end
end
-- Puts an entry into `declined` under a new number, larger than all others, so that Redis offers it again to every
-- worker that has not declined it.
function declined.wait(id, lease)
  state.sequence = state.sequence + 1
  lease.attempts = lease.attempts + (lease.quarantined and 128 or 0)
  put_back('declined', id, lease, state.sequence)
end
