-- kinds: the three kinds of seen. `meta` stores the kind of a crawl, and only this file reads it.
-- Each kind has a file seen_*.lua with a function in KINDS. The function returns a table:
--   has(token)        returns whether the token is stored
--   add(token)        adds the token, and returns true if it was new
--   size, remove      the command that returns the size of key.seen, and the command that removes a token. A kind with
--                     several keys has functions instead of these commands
--   tidy()            does bounded maintenance; a script that has added or removed tokens calls tidy_seen() at its end
--   drop()            deletes the keys other than key.seen, or records them in `discarded` if that takes long
--   load(items)       adds tokens from load.lua; *items* has, before each token, its time (expiring) or the number of
--                     its first bucket (compact)
-- A kind may lack tidy and drop. key.seen exists if anything was seen, and its type identifies the kind.
-- @include discarded
local SIZE = { exact = 'SCARD', expiring = 'ZCARD', compact = 'HLEN' }
local KINDS = {}
local SWEPT_PER_CALL = 100
-- A token that put.lua has just added, while its entry is not stored yet; and the token's admission, which is the
-- number of the key that has it (put.lua). After an error, stopped.lua removes this token again.
local adding, adding_to
local opened -- the table of the kind, once the script has used it
each_call(function() adding, adding_to, opened = nil end)
local function stored_kind()
  local stored = state.epoch and (state.seen_kind or '')
  if stored and stored ~= '' then return stored end
  local actual = not stored and redis.call('TYPE', key.seen).ok -- without meta, the type of the key shows the kind
  return actual == 'zset' and 'expiring' or actual == 'hash' and 'compact' or 'exact'
end
local function seen()
  opened = opened or KINDS[stored_kind()]()
  return opened
end
count_seen = function()
  key_sizes.seen = redis.call(SIZE[stored_kind()], key.seen)
  if key_sizes.seen == 0 and state.seen > 0 then state.seen = -1 end -- the tokens were deleted or evicted, not removed
end
seen_count = function()
  if not state.epoch then return 0 end
  local size = seen().size
  return type(size) == 'string' and redis.call(size, key.seen) or size()
end
local function remove_seen(token)
  local remove = seen().remove
  return type(remove) == 'string' and redis.call(remove, key.seen, token) or remove(token)
end
local function tidy_seen()
  if seen().tidy then opened.tidy() end
  if may_exist('discarded') then sweep_buckets(SWEPT_PER_CALL) end
end
local function drop_seen()
  if seen().drop then opened.drop() end
  redis.call('UNLINK', key.seen)
  state.seen = 0
end
