-- seen, kind exact: the whole fingerprint in a SET. What a kind is: see kinds.lua.
local function seen_exact()
  return {
    type = 'set',
    add = function(token) return redis.call('SADD', key.seen, token) == 1 end,
    remove = function(token) return redis.call('SREM', key.seen, token) end,
    count = function() return redis.call('SCARD', key.seen) end,
    tidy = function() end,
    drop = function() redis.call('UNLINK', key.seen) end,
    some = function(name, most) return redis.call('SRANDMEMBER', name, most), {} end,
    take_out = function(name, tokens) redis.call('SREM', name, unpack(tokens)) end,
    size = function(name) return redis.call('SCARD', name) end,
  }
end
