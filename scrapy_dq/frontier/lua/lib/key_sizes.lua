-- key sizes: reads the sizes of keys. A script does this before it writes anything, so that a key of the wrong type
-- stops it here.
-- @include state
local polite -- whether any key of politeness.lua exists, as far as this script knows; nil: it has not checked
each_call(function() polite = nil end)
local function load_sizes(worker_id)
  if not state then load_state() end
  key_sizes = { members = redis.call('SCARD', key.members), rotation = redis.call('ZCARD', key.rotation) }
  polite = false
  -- In many crawls none of these keys exists, and then one command is enough.
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
  count_seen() -- last, because stopped.lua concludes from the size of `seen` that all sizes were read
end
-- Makes a write that changes nothing, and that Redis allows even if its memory is full. After its first write, a script
-- may exceed maxmemory, so it can then move stored entries.
local function write_first() redis.call('HDEL', key.meta, '') end
