-- commands: sends orders to all workers of a crawl (steer.lua, limit.lua, forget.lua).
-- @include state
-- Returns the commands for a worker as text: four counters (of all commands, stops, forgets, limit_changes) and the
-- hold (paused, draining or empty); or an empty string if there were no commands and the crawl is not on hold.
local function commands()
  if not state.command_counts and state.hold == '' then return '' end
  return (state.command_counts or '0 0 0 0') .. ' ' .. state.hold
end
local COUNTERS = { stops = 2, forgets = 3, limit_changes = 4 }
-- Sends a command. Each worker gets the counters with its next exchange. The counter that has grown shows which command
-- it is. *counter* nil or false: only the count of all commands grows, which wakes idle workers.
local function send_command(counter)
  local counts = {}
  for number in string.gmatch(state.command_counts or '', '%d+') do counts[#counts + 1] = number end
  for i = 1, 4 do
    local more = (i == 1 or i == COUNTERS[counter]) and 1 or 0
    counts[i] = string.format('%.0f', (counts[i] or 0) + more) -- without a format, Lua would write 1e+14
  end
  state.command_counts = table.concat(counts, ' ')
  redis.call('HSET', key.meta, 'told', state.command_counts)
end
-- Returns MOVING if the crawl is half imported (load.lua), or frozen for `scrapy dq move` (freeze.lua); else nothing.
local function half_moved()
  local shards = redis.call('HGET', key.meta, 'shards') or ''
  if string.find(shards, '>', 1, true) then return { 'MOVING', shards } end
end
