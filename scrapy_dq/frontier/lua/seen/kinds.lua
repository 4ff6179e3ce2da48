-- kinds: the kinds of seen. The kind of a crawl is stored in meta, and only this file reads it.
-- A kind is the table that a function of KINDS returns (seen_*.lua):
--   has(token)        whether the token is stored
--   add(token)        adds it; true if it was new
--   size, remove      the commands for the size of key.seen, and to remove a token. A kind with more than one key has
--                     functions instead
--   tidy()            bounded maintenance; a script that has added or removed tokens calls tidy_seen() at its end
--   drop()            deletes the keys other than key.seen, or discards them if that takes long
--   load(items)       adds tokens from load.lua; before each token its time (expiring) or first bucket (compact)
-- The first four, and load, are required. key.seen exists if anything was seen; its type identifies the kind.
-- @include discarded
local SIZE = { exact = 'SCARD', expiring = 'ZCARD', compact = 'HLEN' }
local KINDS = {}
local SWEPT_PER_CALL = 100
-- A token whose entry is not stored yet (put.lua), and its admission: after an error, stopped.lua takes it back.
local adding, adding_to
local opened -- the kind
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
