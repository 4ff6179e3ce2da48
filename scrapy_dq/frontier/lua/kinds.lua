-- kinds: of seen. How a crawl keeps what it has seen stands in meta; this is the one place that asks for it.
-- A kind is what a function of seen.kinds returns (seen_*.lua; an exchange has only that of its worker), a table:
--   add(token)        takes it in; true if it was not known
--   size, remove      the commands for how many key.seen has, and to forget one. A kind with more than one key has
--                     functions instead; one that cannot forget would have no remove
--   tidy()            bounded upkeep; who has added or removed something calls it at its end, by seen.tidy()
--   drop()            what more there is than key.seen is deleted; bounded: what takes long is discarded
--   prepare(expected) so many are added soon
--   some(name, most)  tokens of a key.seen that was renamed to *name*, and which of them count as new: from a kind
--                     without it no other kind can be made
--   wrong             a key of this kind that something else has taken the name of (as is_wrong() says it)
-- The first three it must have. key.seen is there if anything was seen; its type tells the kinds apart.
do
  local TYPES = { exact = 'set', expiring = 'zset', compact = 'hash' }
  local SWEPT_BESIDE = 100
  -- Returns the name of the kind, and of the one that it is made of, while convert.lua is half done.
  local function stored()
    if not state.epoch then
      -- Without its meta it belongs to nobody: it is dropped as what it is.
      local actual = redis.call('TYPE', key.seen).ok
      for name, expected in pairs(TYPES) do
        if actual == expected then return name end
      end
    end
    local name = state.seen_kind or ''
    if TYPES[name] then return name end
    local from, to = string.match(name, '^(%l+)>(%l+)$')
    if from and TYPES[from] and TYPES[to] then return to, from end
    return 'exact'
  end
  -- Returns the kind; seen.source is the one that it is made of, if convert.lua is half done.
  local function kind()
    if not seen.opened then
      local name, from = stored()
      seen.opened, seen.source = seen.kinds[name](), from and seen.kinds[from]()
    end
    return seen.opened
  end
  local function wrong_seen()
    local name, from = stored()
    return is_wrong(key.seen, TYPES[name]) or from and is_wrong(key.converting, TYPES[from])
  end
  local function size_of(kind, name)
    return type(kind.size) == 'string' and redis.call(kind.size, name) or kind.size()
  end
  local function count()
    if not state.epoch then return 0 end
    return size_of(kind(), key.seen) + (seen.source and size_of(seen.source, key.converting) or 0)
  end
  local function tidy()
    if kind().tidy then seen.opened.tidy() end
    if redis.call('EXISTS', key.discarded) == 1 then sweep_some(SWEPT_BESIDE) end
  end
  local function drop()
    if kind().drop then seen.opened.drop() end
    redis.call('UNLINK', key.seen, key.converting)
  end
  -- Half of what was seen is here, half there: nobody may ask, or add, until it is one again. And an exchange that
  -- is for another kind is to come again, for the one that is stored.
  local function unfit()
    local name, from = stored()
    if from then return { 'CONVERTING', state.seen_kind } end
    if not seen.kinds[name] then return { 'KIND', name } end
  end
  seen = { kinds = {}, opened = false, source = false, kind = kind, wrong_type = wrong_seen, size_of = size_of,
    count = count, tidy = tidy, drop = drop, unfit = unfit } -- at once: to grow a table takes time
end
