-- words: what all workers of a crawl were told from outside (steer.lua, limit.lua, forget.lua).
-- USES     keys.key, state
-- What a worker hears: nothing, or the counters told, stops, forgets, limitings, and what holds.
local function words() return state.told and state.told .. ' ' .. state.hold or '' end
local COUNTERS = { stops = 2, forgets = 3, limitings = 4 }
-- Tells all workers: each hears it with its next exchange, and what it was by the counter that is raised.
local function tell(counter)
  local told = {}
  for number in string.gmatch(state.told or '', '%d+') do told[#told + 1] = number end
  for i = 1, 4 do
    told[i] = (tonumber(told[i]) or 0) + ((i == 1 or i == COUNTERS[counter]) and 1 or 0)
  end
  state.told = table.concat(told, ' ')
  redis.call('HSET', key.meta, 'told', state.told)
end
