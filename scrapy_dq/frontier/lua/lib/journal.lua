-- journal: stores the newest events of a crawl, for users. Nothing depends on the journal, so no script fails if it
-- cannot be written: scripts do not check its type, and drop an event that Redis refuses.
-- Each element: msgpack of run, at (ms, Redis's clock), kind, who (the id of a worker, or the user who gave a command),
-- count, about.
-- @include state
local MAX_EVENTS, MAX_TEXT_BYTES, AGAIN_MS = 500, 80, 600000
local function last_event()
  local packed = redis.pcall('LINDEX', key.journal, -1)
  local read, event = pcall(cmsgpack.unpack, type(packed) == 'string' and packed or '')
  return read and type(event) == 'table' and event or {}
end
-- Stores an event. If the last event has the same run, kind, who and about, and is less than ten minutes old (or of any
-- age, if the kind is `finished`), the new event replaces it, with the sum of their counts. Otherwise two things would
-- fill the journal: a retry, which comes in many parts; and a program that puts one request per minute, so that its run
-- finishes every minute.
local function note_event(kind, who, count, about)
  who, about = string.sub(who, 1, MAX_TEXT_BYTES), string.sub(about or '', 1, MAX_TEXT_BYTES)
  local at, last = wall_ms(), last_event()
  local again = last[1] == state.run and last[3] == kind and last[4] == who and last[6] == about
    and (kind == 'finished' or at - (tonumber(last[2]) or 0) < AGAIN_MS)
  if again then count = count + (tonumber(last[5]) or 0) end
  local packed = cmsgpack.pack({ state.run, at, kind, who, count, about })
  if again then return redis.pcall('LSET', key.journal, -1, packed) end
  redis.pcall('RPUSH', key.journal, packed)
  redis.pcall('LTRIM', key.journal, -MAX_EVENTS, -1)
end
