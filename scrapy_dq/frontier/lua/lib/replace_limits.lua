-- replace limits: a worker joins an open run, and its limits (empty: it sets none) replace the run's.
-- Returns the old ones as they were packed; empty: nothing differs.
-- @include limits journal
local NO_LIMITS = cmsgpack.pack({ 0, 0, {} })
local function replace_limits(packed, worker_id)
  local were = redis.call('HGET', key.meta, 'limits_set') or NO_LIMITS
  if packed == '' or packed == were then return '' end
  local old, about = { state.delay_ms / 1000, state.concurrency, state.budget }, {}
  set_limits(packed)
  local new = { state.delay_ms / 1000, state.concurrency, state.budget }
  for i, name in ipairs({ 'delay', 'concurrency', 'budget' }) do
    if old[i] ~= new[i] then about[#about + 1] = string.format('%s %g -> %g', name, old[i], new[i]) end
  end
  note_event('limits', worker_id, 1, about[1] and table.concat(about, ', ') or 'of single partitions')
  return were
end
