-- finish: open -> finished, when everything is empty and nobody is seeding. The keys stay.
-- ARGS     none
-- RETURNS  workers that are seeding (level 1); only looked at while nothing but delayed entries waits, else 0
-- COST     O(1) while something waits, O(workers) else
-- CRASH    before: the next exchange of any worker finds the same; after: each worker learns it by its own
local function finish_if_done()
  if redis.call('EXISTS', key.bands, key.returned, key.quarantine) > 0 then return 0 end
  local seeding, busy = 0, false
  for _, id in ipairs(redis.call('SMEMBERS', key.members)) do
    local level = redis.call('HGET', worker_key(id), 'seeding')
    if level == '1' then seeding = seeding + 1 end
    if level ~= '0' or redis.call('HLEN', in_flight_key(id)) > 0 then busy = true end
  end
  if not busy and redis.call('EXISTS', key.delayed) == 0 then state.phase = 'finished' end
  return seeding
end
