-- rejoin: a live worker registers anew and keeps the leases that are still its own. Idempotent by new_id.
-- ARGS     new_id, identity, old_id, epoch, run, held (ids of 12 bytes, joined), parentless (0 none, 1 waiting,
--          2 logged), seeding (1, or 4: its start() has to run again), and those of described.lua (which count if
--          Redis knows an earlier run only)
-- RETURNS  OK, run, owned (ids, joined), last_seq (the last exchange of old_id that is stored; -1: none is)
--          | FINISHED, last_seq (2^52 if the run is an older one: what it knew of this worker is gone) | LOST
--          | CONVERTING, from>to (nothing changed)
-- COST     O(leases of old_id)
-- CRASH    before: nothing; after, reply lost: the repeat with the same new_id gets the same answer
-- USES     described, described.describe, keys.in_flight_key, keys.key, keys.worker_key, kinds.drop_seen, kinds.unfit,
--          member.keeps_seen, member.next_run, member.register, member.remove_member, member.seen_stays, midway,
--          partition.classify_touched, politeness.save_partitions, release, shared.note_shared, shared.stored_field,
--          starts.AGAIN, starts.forget_done_starts, starts.start_goes_on, state, state.is_member, state.save_state,
--          types.wrong_type
local new_id, identity, old_id, epoch, run = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local held, parentless, seeding, ours = ARGV[6], tonumber(ARGV[7]), ARGV[8], described(9)

local wrong = wrong_type(old_id) or unfit()
if wrong then return wrong end
if not state.epoch or state.epoch ~= epoch then return { 'LOST' } end
if is_member(new_id) then
  return { 'OK', state.run, table.concat(redis.call('HKEYS', in_flight_key(new_id))),
    tonumber(redis.call('HGET', worker_key(new_id), 'came_from') or -1) }
end
if state.run > run and not is_member(old_id) then return { 'FINISHED', 2 ^ 52 } end
if state.run < run then
  -- A Redis that came back older than the start of this run, to one that was over. If that is open here, others may
  -- have joined it since: what waits stays, and has this number from now on. But what that one has seen and started
  -- would hide what this one has yet to crawl; its end would have dropped it, unless both runs keep it.
  local keep = ours.keep_seen ~= '0' and keeps_seen('')
  for _, field in ipairs({ 'fingerprinter', 'seen_kind' }) do
    if ours[field] ~= '' and stored_field(field) ~= ours[field] then keep = false end -- converted since, and forgotten
  end
  if state.phase == 'finished' then
    next_run(keep)
  else
    if not keep or not seen_stays() then
      drop_seen()
      redis.call('UNLINK', key.adopted)
    end
    redis.call('UNLINK', key.seeds)
    forget_done_starts()
  end
  if ours.limits == stored_field('limits_set') then ours.limits = '' end
  state.run = run
  describe(ours)
end
local record = redis.call('HMGET', worker_key(old_id), 'fenced', 'since', 'done', 'last_seq', 'joined')
local old = { fenced = record[1], since = record[2], done = record[3], last_seq = record[4], joined = record[5] }
-- Not there, nor taken for dead: Redis does not know that it ever registered. A member without a record was not
-- forgotten: somebody has deleted the record.
if not old.last_seq and is_member(old_id) then old.last_seq = 2 ^ 52 end
-- A repeat of one that was taken for dead meanwhile finds what the first one was told (fence.lua).
local last_seq = tonumber(old.last_seq or redis.call('HGET', key.absent, old_id)
  or redis.call('HGET', key.absent, new_id) or -1)
if state.phase == 'finished' then
  -- What makes a put known is there still: puts that were stored drop out, and a new one opens the run (put.lua). If
  -- it were opened here, and this worker died, the next crawl would go on with a run that knows all its requests.
  -- A member that only fell out of step stays one: nobody has cleared the run that it is in. One whose start() has to
  -- run again opens it: the run was never complete.
  local comes_back = parentless == 0 and old.fenced ~= '0' and seeding ~= AGAIN
  if comes_back or redis.call('HGET', key.meta, 'cleared') == '1' then return { 'FINISHED', last_seq } end
elseif ours.spider ~= '' and stored_field('spider') == '' then
  describe(ours) -- a program came back first, which does not know what the run is
end
local owned, suspect = {}, ''
midway.registering = new_id
if old.fenced == '0' then
  local mine = {}
  for i = 1, #held, 12 do mine[string.sub(held, i, i + 11)] = true end
  local leases = redis.call('HGETALL', in_flight_key(old_id))
  for i = 1, #leases, 2 do
    if mine[leases[i]] and string.find(leases[i + 1], '\0', 10, true) then -- else it is a stranger's, and no lease
      redis.call('HSET', in_flight_key(new_id), leases[i], leases[i + 1])
      if string.byte(leases[i + 1], 9) >= 128 then suspect = leases[i] end
      owned[#owned + 1] = leases[i]
    else
      release(old_id, leases[i])
    end
  end
  -- Not before: the repeat of one that is stopped has to do it all.
  register(new_id, identity, ours.starts, old, suspect, last_seq, seeding)
  remove_member(old_id)
  classify_touched(0)
  save_partitions()
else
  register(new_id, identity, ours.starts, old, '', last_seq, seeding)
end
redis.call('HDEL', key.absent, old_id, new_id)
start_goes_on(ours.starts, old_id)
note_shared()
if seeding == AGAIN and ours.starts ~= '' then state.phase = 'open' end
save_state()
return { 'OK', state.run, table.concat(owned), last_seq }
