-- seen, kind expiring: stores whole fingerprints in a ZSET, with the time of their admission. A fingerprint that was
-- admitted before `meta.seen_since` counts as new. This time does not change during a run. For the interface of a kind
-- see kinds.lua.
-- @include kinds
function KINDS.expiring()
  local since -- read when needed
  local function seen_since()
    since = since or tonumber(redis.call('HGET', key.meta, 'seen_since') or 0)
    return since
  end
  local function has(token)
    local at = redis.call('ZSCORE', key.seen, token)
    return at and tonumber(at) >= seen_since()
  end
  return {
    size = 'ZCARD',
    remove = 'ZREM',
    has = has,
    add = function(token)
      if has(token) then return false end
      redis.call('ZADD', key.seen, now_ms(), token)
      return true
    end,
    -- Deletes up to 200 expired fingerprints.
    tidy = function()
      if seen_since() == 0 then return end
      local old = redis.call('ZRANGEBYSCORE', key.seen, '-inf', '(' .. seen_since(), 'LIMIT', 0, 200)
      if #old > 0 then redis.call('ZREM', key.seen, unpack(old)) end
    end,
    load = function(items)
      for i = 1, #items, 2 do redis.call('ZADD', key.seen, 'GT', items[i], items[i + 1]) end
    end,
  }
end
