-- abandon: declined -> dead letter, when nothing else is left and every worker that is here has declined what waits.
-- ARGS     workers that are members
-- RETURNS  true if nothing is declined any more | false: a worker may still serve some, or more are left than one call
--          buries
-- COST     O(500 * log declined + workers)
-- CRASH    before: the next exchange of any worker does it; after: nothing to do
-- Whether there are workers with a spider, and every one of them was offered everything that is declined.
-- @include declined messages
local function all_have_declined(members)
  local last = is_there('declined') and redis.call('ZREVRANGE', key.declined, 0, 0, 'WITHSCORES')[2]
  local asked = not last
  for _, id in ipairs(last and members or {}) do
    local offered = fields_of(id, 'offered')[1] -- a program has none: it is not waited for
    if offered and tonumber(offered) < tonumber(last) then return false end
    asked = asked or offered
  end
  return asked and true or false
end
local function abandon(members)
  if not all_have_declined(members) then return false end
  for _, waiting in ipairs(redis.call('ZRANGE', key.declined, 0, 499)) do
    local partition, member = split(waiting, 1)
    local id, payload = string.sub(member, 17, 28), string.sub(member, 30)
    local of = declined.of(id) or { 'no worker can serve it', '' }
    redis.call('HSET', key.dead, id, cmsgpack.pack({
      of[1], wall_ms(), of[2], string.byte(member, 29) % 128, string.sub(member, 1, 16), payload, partition,
    }))
    redis.call('ZREM', key.declined, waiting)
    now_there('dead')
    state.waiting, state.unserved = state.waiting - 1, state.unserved + 1
    count_message(payload, -1)
  end
  redis.call('HSET', key.meta, 'unserved', state.unserved)
  return redis.call('EXISTS', key.declined) == 0
end
