-- held: what the records of members say.
-- @include keys
local function fields_of(id, ...) return redis.call('HMGET', worker_key(id), ...) end
local function leases_of(id) return redis.call('HLEN', in_flight_key(id)) end
local function lease_records_of(id) return redis.call('HVALS', in_flight_key(id)) end
