-- seen, kind exact: stores whole fingerprints in a SET. For the interface of a kind see kinds.lua.
-- @include kinds
function KINDS.exact()
  return {
    size = 'SCARD',
    remove = 'SREM',
    has = function(token) return redis.call('SISMEMBER', key.seen, token) == 1 end,
    add = function(token) return redis.call('SADD', key.seen, token) == 1 end,
    load = function(items) for _, token in ipairs(items) do redis.call('SADD', key.seen, token) end end,
  }
end
