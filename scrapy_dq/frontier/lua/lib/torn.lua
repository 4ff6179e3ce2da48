-- torn: reads what a script that was stopped midway has noted (salvage.lua).
-- USES     keys.key
local READ = { set = { 'SRANDMEMBER' }, hash = { 'HGET', '' }, zset = { 'ZRANGE', 0, 0 }, list = { 'LINDEX', 0 } }
-- Returns nothing if there is none; an empty table if no script of ours wrote it, or it has more bytes than *most*: to
-- read what somebody else wrote can take minutes, and no script is killed meanwhile.
local function stored_torn(most)
  local read = READ[redis.call('TYPE', key.torn).ok]
  if not read then return end
  local packed = redis.call(read[1], key.torn, unpack(read, 2))
  if type(packed) == 'table' then packed = packed[1] end
  if most and packed and #packed > most then return {} end
  local understood, torn = pcall(cmsgpack.unpack, packed or '')
  return understood and type(torn) == 'table' and torn or {}
end
