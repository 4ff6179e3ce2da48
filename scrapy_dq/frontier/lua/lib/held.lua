-- held: whether any member has leases. Then the run is not finished, whatever its phase says (finish.lua).
-- USES     keys.MOST_MEMBERS, keys.in_flight_key, keys.key
local function somebody_holds()
  local members = redis.pcall('SCARD', key.members)
  if type(members) ~= 'number' or members > 2 * MOST_MEMBERS then return false end -- types.lua refuses both
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    if redis.call('EXISTS', in_flight_key(id)) == 1 then return true end
  end
  return false
end
