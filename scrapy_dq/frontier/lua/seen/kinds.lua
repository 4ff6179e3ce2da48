-- kinds: the kinds of seen. The kind of a crawl is stored in meta, and only this file reads it.
-- A kind is the table that a function of KINDS returns (seen_*.lua; an exchange has only the kind of its worker):
--   add(token)        adds it; true if it was new
--   size, remove      the commands for the size of key.seen, and to remove a token. A kind with more than one key has
--                     functions instead; one that cannot forget would have no remove
--   tidy()            bounded maintenance; a script that has added or removed tokens calls tidy_seen() at its end
--   drop()            deletes the keys other than key.seen; bounded: if it takes long, they are discarded
--   prepare(expected) announces how many tokens will be added
--   some(name, most)  tokens of a key.seen that was renamed to *name*, and which of them count as new; a kind without
--                     it cannot be converted
--   arrive(items)     adds what a reshard has read in another shard: tokens, each after what else is known of it
-- The first three, and arrive, are required. key.seen exists if anything was seen; its type identifies the kind.
local TYPES = { exact = 'set', expiring = 'zset', compact = 'hash' }
local SIZE = { exact = 'SCARD', expiring = 'ZCARD', compact = 'HLEN' }
local KINDS = {}
local SWEPT_BESIDE = 100
-- A token whose entry is not stored yet (put.lua), and its admission: after an error, stopped.lua takes it back.
local adding, adding_to = nil -- EACH CALL
local opened, converting = nil -- EACH CALL. The kind; during a conversion (convert.lua), also the old kind
-- Returns the names of both.
local function stored_kinds()
  local stored = state.epoch and (state.seen_kind or '')
  local from, to = string.match(stored or '', '^(%l+)>(%l+)$')
  if not from and stored and stored ~= '' then return stored end
  -- Without meta, or if a conversion was stopped before it renamed `seen`, its type says what it is.
  local actual = (from or not stored) and redis.call('TYPE', key.seen).ok
  if from and (actual == 'none' or actual == TYPES[to]) then return to, from end
  return actual == 'zset' and 'expiring' or actual == 'hash' and 'compact' or 'exact'
end
local function seen()
  if not opened then
    local name, from = stored_kinds()
    opened, converting = KINDS[name](), from and KINDS[from]()
  end
  return opened
end
count_seen = function()
  local name, from = stored_kinds()
  there.seen = redis.call(SIZE[name], key.seen)
  if not from and there.seen == 0 and state.seen > 0 then state.seen = -1 end -- no script has removed it
end
local function tokens_in(kind, name)
  return type(kind.size) == 'string' and redis.call(kind.size, name) or kind.size()
end
seen_count = function()
  if not state.epoch then return 0 end
  return tokens_in(seen(), key.seen) + (converting and tokens_in(converting, key.converting) or 0)
end
local function remove_seen(token)
  local remove = seen().remove
  return type(remove) == 'string' and redis.call(remove, key.seen, token) or remove(token)
end
local function tidy_seen()
  if seen().tidy then opened.tidy() end
  if is_there('discarded') then sweep_some(SWEPT_BESIDE) end
end
local function drop_seen()
  if seen().drop then opened.drop() end
  redis.call('UNLINK', key.seen, key.converting)
  state.seen = 0
end
-- During a conversion the tokens are in two keys: no script may look up or add one until it is complete. An exchange
-- that was built for another kind must be repeated with the script for the stored kind.
local function unfit()
  local name, from = stored_kinds()
  if from then return { 'CONVERTING', state.seen_kind } end
  if not KINDS[name] then return { 'KIND', name } end
end
