-- unserved: what becomes of the pages that no worker of a run could serve, when the next run begins.
-- A run that keeps the seen set finds pages again that no worker of the last run could serve: now there may be code.
-- Returns how many.
-- @include kinds
local function unmark_unserved()
  local all, count = state.unserved > 0 and redis.call('HGETALL', key.decliners) or {}, 0
  for i = 1, #all, 2 do
    local fingerprint = cmsgpack.unpack(all[i + 1])[3]
    if fingerprint ~= '' and redis.call('HEXISTS', key.dead, all[i]) == 1 then
      remove_seen(fingerprint)
      count = count + 1
    end
  end
  if count > 0 then tidy_seen() end
  return count
end
