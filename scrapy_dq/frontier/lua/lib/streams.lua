-- streams: start payloads from a stream, by a consumer group. What is read is pending there until messages.lua
-- acknowledges it. What was read for a crawl that has forgotten it (cleared, or its Redis rolled back), or by a
-- consumer of the group that has died, is read once more.
-- USES     keys.key, messages.count_message, messages.group_of, messages.of_message, state.wall_ms
local read_stream
do
  -- How long a message is left to another consumer; how often this is looked at.
  local IDLE_MS, LOOK_MS = 60000, 10000
  -- What a spider gets of a message: the value of its only field, or JSON of all, in which `meta` is JSON already. That
  -- is only checked: decoded and encoded, it would have numbers of 14 digits, and {} for [].
  local function data_of(fields)
    if #fields == 2 then return fields[2] end
    local all, head = {}, '{'
    for i = 1, #fields, 2 do
      local name, value = fields[i], fields[i + 1]
      if name == 'meta' and pcall(cjson.decode, value) then head = '{"meta":' .. value .. ',' else all[name] = value end
    end
    return head .. string.sub(cjson.encode(all), 2)
  end
  local function abandoned(name)
    local now = wall_ms()
    if math.abs(now - tonumber(redis.call('HGET', key.meta, 'stream_looked') or 0)) < LOOK_MS then return {} end
    redis.call('HSET', key.meta, 'stream_looked', now)
    local reply = redis.pcall('XAUTOCLAIM', name, group_of(), 'crawl', IDLE_MS, '0-0', 'COUNT', 8)
    return reply[2] or {}
  end
  -- Returns payloads, each marked as of its message: of the next one, or of some that were abandoned; or an error.
  read_stream = function(name, mark)
    local function read()
      return redis.pcall('XREADGROUP', 'GROUP', group_of(), 'crawl', 'COUNT', 1, 'STREAMS', name, '>')
    end
    local reply = read()
    if type(reply) == 'table' and reply.err and string.find(reply.err, 'NOGROUP', 1, true) then
      if redis.call('EXISTS', name) == 0 then return {} end
      local made = redis.pcall('XGROUP', 'CREATE', name, group_of(), '0')
      if made.err then return made end
      reply = read()
    end
    if type(reply) == 'table' and reply.err then return reply end
    local messages, payloads = reply and reply[1] and reply[1][2] or abandoned(name), {}
    for _, message in ipairs(messages) do
      -- No fields: it was deleted meanwhile. One that is counted is in progress here.
      local field = message and message[2] and name .. '\0' .. message[1]
      if field and redis.call('HEXISTS', key.messages, field) == 0 then
        local payload = of_message(field, mark .. data_of(message[2]))
        count_message(payload, 1)
        payloads[#payloads + 1] = payload
      end
    end
    return payloads
  end
end
