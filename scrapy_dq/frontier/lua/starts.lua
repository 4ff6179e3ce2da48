-- starts: which start() methods of this run are complete, and which were broken off before all that they yield was
-- stored. A run is not finished while one is broken off and no other has done the same: `meta.starts` has, by name,
-- 'done' or { since when (ms), worker_id }. A name says what start() was called with (the spider's arguments); one that
-- begins with '*' is each worker's own (DQ_SEED_ONCE = False); an empty one is no start() (a program, a command).
local function stored_starts()
  local unpacked, starts = pcall(cmsgpack.unpack, redis.call('HGET', key.meta, 'starts') or '')
  return unpacked and type(starts) == 'table' and starts or {}
end
local function save_starts(starts) redis.call('HSET', key.meta, 'starts', cmsgpack.pack(starts)) end
local function is_own(name) return string.sub(name, 1, 1) == '*' end
-- A worker whose seeding level falls has stored all that its start() yields: whichever with the same name was broken
-- off, this one is as good.
local function start_done(worker_id, level, was_level)
  if level == was_level or (level ~= '0' and level ~= '3') then return end
  local worker = redis.call('HMGET', worker_key(worker_id), 'starts', 'since')
  local name = worker[1] or ''
  if name == '' then return end
  local starts = stored_starts()
  local was = starts[name]
  if was == 'done' then return end
  -- One of its own makes up for one that was broken off only if it began later.
  if type(was) == 'table' and is_own(name) and (tonumber(worker[2]) or 0) <= (tonumber(was[1]) or 0) then return end
  starts[name] = 'done'
  save_starts(starts)
end
-- A worker is gone, or leaves; returns the name of its start() if that was broken off and nobody has done it, else ''.
local function start_broken(worker_id)
  local worker = redis.call('HMGET', worker_key(worker_id), 'starts', 'seeding')
  local name, seeding = worker[1] or '', worker[2]
  if name == '' or state.phase == 'finished' or (seeding ~= '1' and seeding ~= '2') then return '' end
  local starts = stored_starts()
  if starts[name] == 'done' and not is_own(name) then return '' end
  starts[name] = { wall_ms(), worker_id }
  save_starts(starts)
  return name
end
-- One that was taken for dead is back, and goes on with its own.
local function start_goes_on(name, old_id)
  local starts = is_own(name) and stored_starts() or {}
  if type(starts[name]) ~= 'table' or starts[name][2] ~= old_id then return end
  starts[name] = nil
  save_starts(starts)
end
-- How many are broken off.
local function incomplete_starts()
  local count = 0
  for _, was in pairs(stored_starts()) do
    if type(was) == 'table' then count = count + 1 end
  end
  return count
end
