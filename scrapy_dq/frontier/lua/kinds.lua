-- kinds: of seen. How a crawl keeps what it has seen stands in meta; this is the one place that asks for it.
-- A kind (seen_*.lua) is a function that returns a table:
--   type              of key.seen, which is there if anything was seen
--   add(token)        takes it in; true if it was not known
--   remove(token)     1 if it was known, else 0. A kind that cannot forget would have none
--   count()           how many it knows
--   tidy()            bounded upkeep; who has added or removed something calls it at its end, by tidy_seen()
--   drop()            nothing is known any more; bounded: what takes long is discarded
--   wrong             a key of this kind that something else has taken the name of (as is_wrong() says it)
-- and, if another kind can be made of it, for the key *name* that its key.seen was renamed to:
--   some(name, most)  tokens, and which of them count as new
--   take_out(name, tokens), size(name)
-- prepare(expected), if it has one, is called before so many are added at once.
local KINDS = { exact = seen_exact, expiring = seen_expiring, compact = seen_compact }
local KIND_OF = { zset = 'expiring', hash = 'compact' }
local SWEPT_BESIDE = 100
local opened, converting, litter -- the kind; the one that it is made of just now; whether anything is discarded
local function seen()
  if opened then return opened end
  local kind = state.seen_kind
  -- Without its meta it may be of any kind, and belongs to nobody: it is dropped as what it is.
  if not state.epoch then kind = KIND_OF[redis.call('TYPE', key.seen).ok] end
  local from, to = string.match(kind or '', '^(%l+)>(%l+)$') -- convert.lua is half done
  converting = from and (KINDS[from] or seen_exact)()
  opened = (KINDS[to or kind] or seen_exact)()
  return opened
end
wrong_seen = function()
  litter = redis.call('EXISTS', key.discarded) == 1
  return is_wrong(key.seen, seen().type) or converting and is_wrong(key.converting, converting.type)
    or litter and is_wrong(key.discarded, 'hash')
end
seen_count = function()
  if not state.epoch then return 0 end
  return seen().count() + (converting and converting.size(key.converting) or 0)
end
local function seen_add(token) return seen().add(token) end
local function tidy_seen()
  seen().tidy()
  if litter then sweep_some(SWEPT_BESIDE) end
end
local function drop_seen()
  seen().drop()
  redis.call('UNLINK', key.converting)
end
-- Half of what was seen is here, half there: nobody may ask, or add, until it is one again.
local function half_converted()
  seen()
  if converting then return { 'CONVERTING', state.seen_kind } end
end
