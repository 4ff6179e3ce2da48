-- messages: counts the entries that come from each message of a stream. A message stays pending in its consumer group
-- until all its entries are done.
--   messages  HASH  stream 0 id -> how many of its entries are not done
-- The payload of such an entry begins with FROM_STREAM, the length of this hash field (2 bytes), and the field itself
-- (messages.py).
-- @include keys
local count_message, of_message, group_of -- their helpers are in a block, because a script may have only 200 locals
do
  local FROM_STREAM, BYTE, GROUP = '\8', 8, 'scrapy_dq:'
  local byte = string.byte
  local function message_of(payload)
    if byte(payload) == BYTE then return string.sub(payload, 4, 3 + struct.unpack('>I2', string.sub(payload, 2, 3))) end
  end
  of_message = function(field, payload) return FROM_STREAM .. struct.pack('>I2', #field) .. field .. payload end
  group_of = function() return GROUP .. string.sub(key.meta, 1, -6) end
  -- Changes the number of entries of a message, and acknowledges the message if no entry is left. *change*: 1: an entry
  -- was stored; -1: an entry is done, failed, dropped or dead; 0: only acknowledge the message if it has no entry.
  count_message = function(payload, change)
    local field = byte(payload) == BYTE and message_of(payload) -- byte() first: each put calls this function
    if not field or redis.call('HINCRBY', key.messages, field, change) > 0 then return end
    redis.call('HDEL', key.messages, field)
    local stop = string.find(field, '\0', 1, true)
    -- Ignore an error: the user may have replaced the stream by another key, and then no message is pending.
    redis.pcall('XACK', string.sub(field, 1, stop - 1), group_of(), string.sub(field, stop + 1))
  end
end
