-- words: commands and notices for all workers of a crawl (steer.lua, limit.lua, forget.lua).
-- @include state
-- Returns what a worker gets: nothing, or the counters told (of all words), stops, forgets, limitings, and the hold.
local function words()
  if not state.told and state.hold == '' then return '' end
  return (state.told or '0 0 0 0') .. ' ' .. state.hold
end
local COUNTERS = { stops = 2, forgets = 3, limitings = 4 }
-- Notifies all workers: each gets the counters with its next exchange; the incremented one says what the word was.
local function tell(counter)
  local told = {}
  for number in string.gmatch(state.told or '', '%d+') do told[#told + 1] = number end
  for i = 1, 4 do
    local more = (i == 1 or i == COUNTERS[counter]) and 1 or 0
    told[i] = string.format('%.0f', (told[i] or 0) + more) -- as a number, Lua writes 1e+14
  end
  state.told = table.concat(told, ' ')
  redis.call('HSET', key.meta, 'told', state.told)
end
-- Whether a crawl is between two places: half imported (load.lua), or frozen while it moves (freeze.lua).
local function half_moved()
  local shards = redis.call('HGET', key.meta, 'shards') or ''
  if string.find(shards, '>', 1, true) then return { 'MOVING', shards } end
end
