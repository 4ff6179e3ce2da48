-- key sizes: a script reads them before it writes anything, so that a key of the wrong type stops it here.
-- @include state
local polite -- whether any key of politeness exists, as far as this script knows
each_call(function() polite = nil end)
local function load_sizes(worker_id)
  if not state then load_state() end
  key_sizes = { members = redis.call('SCARD', key.members), rotation = redis.call('ZCARD', key.rotation) }
  polite = false
  -- In many crawls none of these exists.
  if redis.call('EXISTS', key.dead, key.returned, key.quarantine, key.declined, key.decliners, key.delayed,
    key.discarded, key.messages, key.suspects, key.resting, key.saturated, key.limits, key.busy, key.unsent,
    key.earliest, key.blocked, key.spent) > 0 then
    for _, name in ipairs({ 'returned', 'quarantine', 'declined', 'delayed' }) do
      key_sizes[name] = redis.call('ZCARD', key[name])
    end
    for _, name in ipairs({ 'dead', 'decliners', 'discarded', 'messages' }) do
      key_sizes[name] = redis.call('HLEN', key[name])
    end
    polite = redis.call('EXISTS', key.suspects, key.resting, key.saturated, key.limits, key.busy, key.unsent,
      key.earliest, key.blocked, key.spent) > 0
    if polite then key_sizes.suspects = redis.call('ZCARD', key.suspects) end
  end
  if worker_id then key_sizes.in_flight = leases_of(worker_id) end
  count_seen() -- last: stopped.lua takes it as the sign that all sizes were read
end
-- After its first write a script may exceed maxmemory. This write changes nothing, and lets a script move stored
-- entries in a full Redis.
local function write_first() redis.call('HDEL', key.meta, '') end
