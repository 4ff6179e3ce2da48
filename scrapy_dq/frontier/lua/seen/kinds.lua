-- kinds: of seen. How a crawl keeps what it has seen stands in meta; this is the one place that asks for it.
-- A kind is what a function of KINDS returns (seen_*.lua; an exchange has only that of its worker), a table:
--   add(token)        takes it in; true if it was not known
--   size, remove      the commands for how many key.seen has, and to forget one. A kind with more than one key has
--                     functions instead; one that cannot forget would have no remove
--   tidy()            bounded upkeep; who has added or removed something calls it at its end, by tidy_seen()
--   drop()            what more there is than key.seen is deleted; bounded: what takes long is discarded
--   prepare(expected) so many are added soon
--   some(name, most)  tokens of a key.seen that was renamed to *name*, and which of them count as new: from a kind
--                     without it no other kind can be made
--   wrong             a key of this kind that something else has taken the name of (as is_wrong() says it)
-- The first three it must have. key.seen is there if anything was seen; its type tells the kinds apart.
-- USES     discarded.sweep_some, keys.key, state, state.is_there, state.seen_count, state.wrong_seen, types.is_wrong,
--          types.size_of
local TYPES = { exact = 'set', expiring = 'zset', compact = 'hash' }
local KINDS = {}
local SWEPT_BESIDE = 100
local opened, converting -- the kind; the one that it is made of, while convert.lua is half done
-- Returns the names of these two.
local function stored_kinds()
  if not state.epoch then
    -- Without its meta it belongs to nobody: it is dropped as what it is.
    local actual = redis.call('TYPE', key.seen).ok
    for name, expected in pairs(TYPES) do
      if actual == expected then return name end
    end
  end
  local stored = state.seen_kind or ''
  if TYPES[stored] then return stored end
  local from, to = string.match(stored, '^(%l+)>(%l+)$')
  if from and TYPES[from] and TYPES[to] then return to, from end
  return 'exact'
end
local function seen()
  if not opened then
    local name, from = stored_kinds()
    opened, converting = KINDS[name](), from and KINDS[from]()
  end
  return opened
end
wrong_seen = function()
  local name, from = stored_kinds()
  local wrong
  there.seen, wrong = size_of(key.seen, TYPES[name])
  if wrong then return wrong end
  if from then return is_wrong(key.converting, TYPES[from]) end
  if there.seen == 0 and state.seen > 0 then state.seen = -1 end -- not by any script
end
local function tokens_in(kind, name)
  return type(kind.size) == 'string' and redis.call(kind.size, name) or kind.size()
end
seen_count = function()
  if not state.epoch then return 0 end
  return tokens_in(seen(), key.seen) + (converting and tokens_in(converting, key.converting) or 0)
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
-- Half of what was seen is here, half there: nobody may ask, or add, until it is one again. And an exchange that
-- is for another kind is to come again, for the one that is stored.
local function unfit()
  local name, from = stored_kinds()
  if from then return { 'CONVERTING', state.seen_kind } end
  if not KINDS[name] then return { 'KIND', name } end
end
