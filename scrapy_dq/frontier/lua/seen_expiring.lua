-- seen, kind expiring: the fingerprint with the time of its admission. What was admitted before
-- seen_since, which stands still while a run goes on, counts as new. True if it was not there, or too old.
local function seen_since()
  state.seen_since = state.seen_since or tonumber(redis.call('HGET', key.meta, 'seen_since') or 0)
  return state.seen_since
end
local function seen_add(fingerprint)
  local at = redis.call('ZSCORE', key.seen, fingerprint)
  if at and tonumber(at) >= seen_since() then return false end
  redis.call('ZADD', key.seen, now_ms(), fingerprint)
  return true
end
-- Deletes some of what counts as new, with each exchange.
local function seen_tidy()
  if seen_since() == 0 then return end
  local old = redis.call('ZRANGEBYSCORE', key.seen, '-inf', '(' .. state.seen_since, 'LIMIT', 0, 200)
  if #old > 0 then redis.call('ZREM', key.seen, unpack(old)) end
end
