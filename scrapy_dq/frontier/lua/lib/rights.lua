-- rights: finds the commands that this user may not call. A denied command would stop a script midway.
-- @include keys
-- If Redis denies a command, its error message contains one of these texts. They differ between Redis 6.2, 7, 8 and
-- Valkey. The last one is for a command that `rename-command` has renamed.
local DENIED = { 'NOPERM', "can't run this command", "can't access at least one", 'ACL failure in script',
  'nknown Redis command' }
-- Tries the commands of all scripts. Returns the denied commands, and the error for the first one; leaves no key
-- behind. *kind*: the kind of the start keys (claim.lua); commands for streams are tried only if it is 'stream'.
local function refused_commands(kind)
  local scratch, refused, message = worker_key('rights'), {}, ''
  local function try(...)
    local reply = redis.pcall(...)
    for _, denied in ipairs(DENIED) do
      if type(reply) == 'table' and string.find(reply.err or '', denied, 1, true) then
        if not refused[1] then message = reply.err end
        refused[#refused + 1] = (...)
        return false
      end
    end
    return true
  end
  -- The scratch key does not exist, so commands that write fail with another error, or change nothing.
  try('TIME')
  for _, command in ipairs({ 'EXISTS', 'HGETALL', 'HKEYS', 'HLEN', 'HVALS', 'LLEN', 'LPOP', 'SCARD', 'SMEMBERS',
    'SRANDMEMBER', 'TYPE', 'ZCARD' }) do try(command, scratch) end
  for _, command in ipairs({ 'HDEL', 'HEXISTS', 'HGET', 'HMGET', 'LPOS', 'SISMEMBER', 'SREM', 'ZMSCORE', 'ZREM',
    'ZSCORE' }) do try(command, scratch, '') end
  for _, command in ipairs({ 'HRANDFIELD', 'HSCAN', 'LINDEX' }) do try(command, scratch, 0) end
  for _, command in ipairs({ 'LRANGE', 'LREM', 'LSET', 'LTRIM', 'ZRANGE', 'ZREVRANGE' }) do
    try(command, scratch, 0, 0)
  end
  for _, command in ipairs({ 'ZRANGEBYLEX', 'ZRANGEBYSCORE' }) do try(command, scratch, '-', '+') end
  for _, command in ipairs({ 'HINCRBY', 'HINCRBYFLOAT' }) do try(command, scratch, '', 'no number') end
  try('HSET', scratch, '', '', 'of these the number is even')
  if kind == 'stream' then
    try('XACK', scratch, '', '0-1')
    try('XAUTOCLAIM', scratch, '', '', 0, '0-0')
    try('XGROUP', 'CREATE', scratch, '', '0')
    try('XREADGROUP', 'GROUP', '', '', 'STREAMS', scratch, '>')
  end
  try('ZADD', scratch, 'XX', 0, '')
  try('ZUNIONSTORE', scratch, 1, scratch)
  -- These commands write with any arguments. So try them only if UNLINK can delete the key afterwards.
  for _, command in ipairs(try('UNLINK', scratch) and { 'SADD', 'LPUSH', 'RPUSH' } or {}) do
    try(command, scratch, '')
    redis.pcall('UNLINK', scratch)
  end
  redis.pcall('UNLINK', scratch)
  return refused, message
end
