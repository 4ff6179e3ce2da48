-- held: the keys of members. Most scripts read those of all members. One of another type, which somebody else wrote,
-- counts as empty: else that one would stop every script, and so every worker.
-- USES     keys.MOST_MEMBERS, keys.in_flight_key, keys.key, keys.worker_key
local function read_hash(command, name, ...)
  local reply = redis.pcall(command, name, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
end
-- Of the record of a member; an empty table if it cannot be read.
local function fields_of(id, ...) return read_hash('HMGET', worker_key(id), ...) or {} end
-- How many leases a member has; nil if the key has another type.
local function leases_of(id) return read_hash('HLEN', in_flight_key(id)) end
local function lease_records_of(id) return read_hash('HVALS', in_flight_key(id)) or {} end
-- Before a member is written to or removed: nothing in a key of another type is ours.
local function unlink_foreign(id)
  if not leases_of(id) then redis.call('UNLINK', in_flight_key(id)) end
  if not read_hash('HLEN', worker_key(id)) then redis.call('UNLINK', worker_key(id)) end
end
-- Whether any member has leases. Then the run is not finished, whatever its phase says (finish.lua).
local function somebody_holds()
  local members = redis.pcall('SCARD', key.members)
  if type(members) ~= 'number' or members > 2 * MOST_MEMBERS then return false end -- types.lua refuses both
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    if (leases_of(id) or 0) > 0 then return true end
  end
  return false
end
