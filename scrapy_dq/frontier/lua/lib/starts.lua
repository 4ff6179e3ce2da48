-- starts: records which start() methods of this run are complete, and which were interrupted before all their requests
-- were stored. A run cannot finish while a start() is interrupted and no equal start() is complete.
-- `meta.starts` maps the name of a start() to 'done' if it is complete. If it was interrupted, the value is { event
-- (the number that next_event() gave to the interruption), worker_id, again (true: it has to run again), others (true:
-- it was also interrupted in other workers) }.
-- A name contains the spider's arguments, because a start() with equal arguments yields equal requests. Two start()
-- methods are *equal* if they have the same name without a '*' in front. The '*' means that start() methods of this
-- name may yield different requests, for example with DQ_SEED_ONCE = False. The name is empty if a worker has no
-- start(), because it is a program or a command. '?' stands for the start() of a worker whose record is gone.
-- @include state
-- AGAIN is the seeding level of a worker whose stored start requests are gone, so that its start() has to run again.
local UNKNOWN, AGAIN = '?', '4'
local function stored_starts()
  local stored = redis.call('HGET', key.meta, 'starts')
  return stored and cmsgpack.unpack(stored) or {}
end
local function save_starts(starts)
  if next(starts) == nil then return redis.call('HDEL', key.meta, 'starts') end
  redis.call('HSET', key.meta, 'starts', cmsgpack.pack(starts))
end
local function is_own(name) return string.sub(name, 1, 1) == '*' end
-- Records that a start() is complete if its worker lowers its seeding level to 0 or 3 (levels: see exchange.lua),
-- because then all requests of this start() are stored. This also completes an interrupted start() of the same name,
-- and an unknown one ('?') that was interrupted before this worker joined.
local function start_done(worker_id, level, was_level)
  if level == was_level or (level ~= '0' and level ~= '3') then return end
  local worker = redis.call('HMGET', worker_key(worker_id), 'starts', 'joined')
  local name = worker[1] or ''
  if name == '' then return end
  local starts, joined = stored_starts(), tonumber(worker[2]) or 0
  local was, unknown = starts[name], starts[UNKNOWN]
  if type(unknown) == 'table' and joined > unknown[1] then starts[UNKNOWN] = nil
  elseif was == 'done' then return end
  -- If the start() methods of this name are not equal, or the interrupted one has to run again, only a start() that
  -- began after the interruption completes it.
  local later = type(was) == 'table' and (is_own(name) or was[3])
  if not later or joined > was[1] then starts[name] = 'done' end
  save_starts(starts)
end
-- Records that a start() was interrupted. Returns its name, or '' if an equal start() is complete.
local function note_broken(name, worker_id, again)
  local starts = stored_starts()
  if starts[name] == 'done' and not is_own(name) and not again then return '' end
  local was = type(starts[name]) == 'table' and starts[name] or {}
  starts[name] = { next_event(), worker_id, again or was[3] or false, was[4] or was[2] ~= nil and was[2] ~= worker_id }
  save_starts(starts)
  return name
end
-- Records that a worker is dead or leaves. Returns the name of its start() if that start() is interrupted now, else ''.
local function start_broken(worker_id)
  local worker = fields_of(worker_id, 'starts', 'seeding')
  local name, seeding = worker[1] or '', worker[2]
  if state.phase == 'finished' then return '' end
  if not seeding and redis.call('SISMEMBER', key.members, worker_id) == 1 then
    return note_broken(UNKNOWN, worker_id)
  end
  if name == '' or (seeding ~= '1' and seeding ~= '2' and seeding ~= AGAIN) then return '' end
  return note_broken(name, worker_id, seeding == AGAIN)
end
-- Forgets the complete start() methods of an earlier run (rejoin.lua). Interrupted start() methods stay, because the
-- interruption may be newer than the roll-back.
local function forget_done_starts()
  local starts = stored_starts()
  for name, was in pairs(starts) do
    if was == 'done' then starts[name] = nil end
  end
  save_starts(starts)
end
-- Ends the interruption of a start() whose name begins with '*': its worker was declared dead, but is back and
-- continues it.
local function resume_start(name, old_id)
  local starts = is_own(name) and stored_starts() or {}
  local was = starts[name]
  if type(was) ~= 'table' or was[2] ~= old_id then return end
  starts[name] = was[4] and { was[1], '', was[3], true } or nil
  save_starts(starts)
end
-- Returns how many start() methods are interrupted.
local function incomplete_starts()
  local count = 0
  for _, was in pairs(stored_starts()) do
    if type(was) == 'table' then count = count + 1 end
  end
  return count
end
