-- state: the counts, the phase and the clock of the run. A script reads them once, and save_state() writes them once.
-- A script that moves an entry also changes the counts `waiting`, `in_flight` and `delayed`. A script that adds or
-- removes a member also changes `members`. Only an audit counts the keys again. A run is *finished* when the keys are
-- empty and all these counts agree (finish.lua).
-- @include keys
local state, now
local key_sizes -- the sizes of keys when this script started (key_sizes.lua); nil: the script has not read them
local touched -- the partitions that this script has changed; partition.lua then moves them to the right set
each_call(function() state, now, key_sizes, touched = nil, nil, nil, {} end)
local DAY_MS = 86400000
local function may_exist(name) return not key_sizes or (key_sizes[name] or 0) > 0 end
local function note_added(name) if key_sizes then key_sizes[name] = (key_sizes[name] or 0) + 1 end end
local count_seen, seen_count -- defined in kinds.lua: they depend on the kind of seen
local CLAIMED = '\1' -- the partition of claimed start payloads (claim.lua); no request has it, and it has no limits
-- Each further field that a command reads or writes takes as long as another command. So one field contains all values
-- that change in each exchange.
local COUNTS = '^' .. string.rep('(%-?%d+) ', 11) .. '(%-?%d+)$'
local function load_state()
  local s = redis.call('HMGET', key.meta, 'epoch', 'run', 'phase', 'counts', 'limiting', 'seen_kind', 'told', 'hold',
    'gone', 'never_sent', 'unserved', 'torn', 'order')
  local sequence, waiting, in_flight, done, failed, turn, clock, offset, claimed, delayed, members, seen =
    string.match(s[4] or '', COUNTS)
  local delay_ms, concurrency, budget, budget_period = string.match(s[5] or '', '^(%d+) (%d+) ?(%d*) ?(%d*)$')
  state = {
    epoch = s[1], run = tonumber(s[2] or 0), phase = s[3], stored_phase = s[3], done = tonumber(done or 0),
    sequence = tonumber(sequence or 0), waiting = tonumber(waiting or 0), in_flight = tonumber(in_flight or 0),
    failed = tonumber(failed or 0), turn = tonumber(turn or 0), clock = tonumber(clock or 0),
    offset = tonumber(offset or 0), claimed = tonumber(claimed or 0), -- 1: a start payload was claimed in this run
    delayed = tonumber(delayed or 0), members = tonumber(members or 0), never_sent = tonumber(s[10] or 0),
    -- The number of tokens in `seen` when the counts were stored. -1: the tokens were deleted or evicted, and no audit
    -- has recorded this loss yet.
    seen = tonumber(seen or 0),
    gone = tonumber(s[9] or 0), -- requests and keys of this run that are gone (audit.lua)
    unserved = tonumber(s[11] or 0), -- dead letters of this run that no worker could serve (finish.lua)
    damage = s[12] and 'torn' or '', torn = s[12], -- which keys contradict the counts (damage.lua, stopped.lua)
    limited = delay_ms ~= nil, -- whether this run has or had any limit; otherwise leases are not counted by partition
    delay_ms = tonumber(delay_ms or 0), concurrency = tonumber(concurrency or 0), seen_kind = s[6],
    budget = tonumber(budget) or 0, budget_period = tonumber(budget_period) or 1, -- 1: a run, 2: a day
    command_counts = s[7], -- the counters of commands.lua; false: no command was sent yet
    order = s[13] or 'fifo', -- empty: a program has begun the crawl, and no worker with an order has joined yet
    hold = s[8] or '', -- paused, draining, or empty; entries are leased only if it is empty
  }
end
local function save_state()
  -- Not %d: a C long may have 32 bits.
  local counts = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', state.sequence,
    state.waiting, state.in_flight, state.done, state.failed, state.turn, state.clock, state.offset, state.claimed,
    state.delayed, state.members, state.seen < 0 and -1 or seen_count())
  if state.never_sent > 0 then redis.call('HSET', key.meta, 'never_sent', state.never_sent) end
  if state.phase == state.stored_phase then return redis.call('HSET', key.meta, 'counts', counts) end
  redis.call('HSET', key.meta, 'counts', counts, 'phase', state.phase)
end
local function open_run() -- writes the phase before anything is stored in the run
  if state.stored_phase == 'finished' then
    redis.call('HSET', key.meta, 'phase', 'open')
    redis.call('HDEL', key.meta, 'seen_for') -- the kept seen set is in use again
  end
  state.phase, state.stored_phase = 'open', 'open'
end
local function save_limiting()
  if not state.limited then return redis.call('HDEL', key.meta, 'limiting') end
  local limiting = state.delay_ms .. ' ' .. state.concurrency .. ' ' .. state.budget .. ' ' .. state.budget_period
  -- Without a budget, this is the format of earlier versions.
  redis.call('HSET', key.meta, 'limiting', (string.gsub(limiting, ' 0 1$', '')))
end
local function is_member(id) return redis.call('SISMEMBER', key.members, id) == 1 end
-- Returns the answer to a call with another epoch or run; nothing if both are the stored ones. A worker that was frozen
-- while its run ended must change nothing. *member*: the id of the calling worker. If a later run is stored, but this
-- worker is still a member, then the rejoin of another worker has given their common run a new number (rejoin.lua), and
-- this worker has to rejoin.
local function stale(epoch, run, member)
  if not state.epoch or state.epoch ~= epoch then return 'LOST' end
  if state.run < run or state.run > run and member and is_member(member) then return 'RESYNC' end
  if state.run > run then return 'FINISHED' end
end
local function census(seeding, incomplete, only_over_budget)
  return { state.waiting, state.in_flight, state.done, may_exist('dead') and redis.call('HLEN', key.dead) or 0,
    seen_count(), redis.call('SCARD', key.members), seeding or 0, state.failed, may_exist('delayed')
    and redis.call('ZCARD', key.delayed) or 0, state.gone, incomplete or 0, state.sequence, only_over_budget or 0,
    state.never_sent,
    may_exist('declined') and redis.call('ZCARD', key.declined) or 0, state.unserved }
end
local function wall_us() local now = redis.call('TIME') return now[1] * 1000000 + now[2] end
local function wall_ms() return math.floor(wall_us() / 1000) end
local function next_event() -- a later event has a larger number, even if Redis's clock was set back
  return redis.call('HINCRBY', key.meta, 'events', 1)
end
-- The crawl's own clock follows Redis's clock. If Redis's clock is set back, by a correction or a failover, the crawl's
-- clock continues from its last time. Otherwise each waiting partition would wait longer, by as much as the clock was
-- set back.
local function now_ms()
  if not now then
    local wall = wall_ms()
    if wall + state.offset < state.clock then state.offset = state.clock - wall end
    now, state.clock = wall + state.offset, wall + state.offset
  end
  return now
end
local function fields_of(id, ...) return redis.call('HMGET', worker_key(id), ...) end
local function leases_of(id) return redis.call('HLEN', in_flight_key(id)) end
local function lease_records_of(id) return redis.call('HVALS', in_flight_key(id)) end
