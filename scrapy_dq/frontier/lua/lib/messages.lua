-- messages: start payloads from streams. Each message stays pending in its consumer group until all its entries are
-- done.
--   messages  HASH  stream 0 id -> how many of its entries are not done
-- The payload of such an entry begins with FROM_STREAM, the length of the field (2 bytes), and the field (messages.py).
-- @include keys
local count_message, of_message, group_of -- their helpers are hidden: a script may have 200 locals
do
  local FROM_STREAM, BYTE, GROUP = '\8', 8, 'scrapy_dq:'
  local byte = string.byte
  local function message_of(payload)
    if byte(payload) == BYTE then return string.sub(payload, 4, 3 + struct.unpack('>I2', string.sub(payload, 2, 3))) end
  end
  of_message = function(field, payload) return FROM_STREAM .. struct.pack('>I2', #field) .. field .. payload end
  group_of = function() return GROUP .. string.sub(key.meta, 1, -6) end
  -- *change*: 1: an entry of a message was stored; -1: an entry is done, failed, dropped or dead; 0: no entry changed.
  -- If no entry of the message is left, this acknowledges the message.
  count_message = function(payload, change)
    local field = byte(payload) == BYTE and message_of(payload) -- each put calls this
    if not field or redis.call('HINCRBY', key.messages, field, change) > 0 then return end
    redis.call('HDEL', key.messages, field)
    local stop = string.find(field, '\0', 1, true)
    -- If the stream was deleted in the meantime, nothing is pending.
    redis.pcall('XACK', string.sub(field, 1, stop - 1), group_of(), string.sub(field, stop + 1))
  end
end
