-- words: what all workers of a crawl were told from outside (steer.lua, limit.lua, forget.lua).
-- What a worker hears: nothing, or the counters told, stops, forgets, limitings, and what holds.
local function words() return state.told and state.told .. ' ' .. state.hold or '' end
-- Tells all workers: each hears it with its next exchange, and what it was by the counter that is raised.
local function tell(counter)
  if counter then redis.call('HINCRBY', key.meta, counter, 1) end
  redis.call('HINCRBY', key.meta, 'words', 1)
end
