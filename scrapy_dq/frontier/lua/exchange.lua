-- exchange: apply a prefix of a worker's outbox, in order, and lease: one atomic step.
-- ARGS     worker_id, epoch, run, seq, want, seeding (0 no, 1 yes, 2 its start() failed), held, max_bytes,
--          keep_failed, moves (msgpack: [1, admission, token, id, priority, start, payload] put, [2, id] ack,
--          [3, id] release, [4, id, reason] bury, [5, id, reason, label] fail)
-- RETURNS  OK | FINISHED, applied, dropped positions (from 0), census, leases | LOST | RESYNC | FINISHED
-- COST     O(moves + want), at most 1,000 each; 6 ms at most on an ordinary core
-- CRASH    before: the worker sends the same bytes again; after, reply lost: the same bytes with the same
--          seq get the same answer; worker dead: its leases are reclaimed, its outbox dies with it, and
--          the parents of what was in there are still in flight
local worker_id, epoch, run, seq = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local want, seeding, held, max_bytes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local keep_failed, moves = tonumber(ARGV[9]), ARGV[10]
local PUT, ACK, RELEASE, BURY, FAIL = 1, 2, 3, 4, 5

load_state()
local answer = stale(epoch, run)
if answer then return { answer } end
local me = redis.call('HMGET', worker_key(worker_id), 'last_seq', 'fenced', 'quarantined', 'dropped', 'leases')
local last_seq = tonumber(me[1])

if last_seq == seq then
  -- A repeat after a lost reply. The leases are in flight still: nobody else could settle them.
  local leases = {}
  for i = 1, #me[5], 12 do
    local id = string.sub(me[5], i, i + 11)
    local record = redis.call('HGET', in_flight_key(worker_id), id)
    if record then
      leases[#leases + 1] = id
      leases[#leases + 1] = string.byte(record, 17) % 128
      leases[#leases + 1] = string.sub(record, 18)
    end
  end
  return { state.phase == 'finished' and 'FINISHED' or 'OK', 1, me[4], census(), leases }
end

moves = cmsgpack.unpack(moves)
if state.phase == 'finished' then
  if not last_seq or seq ~= last_seq + 1 then return { 'RESYNC' } end
  local puts = false
  for _, move in ipairs(moves) do puts = puts or move[1] == PUT end
  if not puts then return { 'FINISHED', 0, '', census(), {} } end
end
if not last_seq or me[2] == '1' then return { 'RESYNC' } end
if seq ~= last_seq + 1 then return { 'RESYNC' } end
local wrong = wrong_type(worker_id)
if wrong then return wrong end
local place_ranks, ranks = {}, {}
for i, move in ipairs(moves) do
  if move[1] == PUT then
    place_ranks[i] = string.format('%.0f', order_rank(move[5], move[6]))
    ranks[place_ranks[i]] = true
  end
end
local best = want > 0 and redis.call('ZRANGE', key.bands, 0, 0)[1]
if best then ranks[best] = true end
wrong = wrong_list(ranks)
if wrong then return wrong end
-- A late copy of an exchange can fit the sequence after Redis stepped back; only the count shows it.
if held ~= redis.call('HLEN', in_flight_key(worker_id)) then return { 'RESYNC' } end

-- Puts first: a script that has written may go past maxmemory, and an ack writes.
local dropped = {}
for i, move in ipairs(moves) do
  if move[1] == PUT and not put(move[2], move[3], move[4], place_ranks[i], move[7]) then
    dropped[#dropped + 1] = i - 1
  end
end
for _, move in ipairs(moves) do
  local kind = move[1]
  if kind == ACK then ack(worker_id, move[2])
  elseif kind == RELEASE then release(worker_id, move[2])
  elseif kind == BURY then bury(worker_id, move[2], move[3])
  elseif kind == FAIL then fail(worker_id, move[2], move[3], move[4], keep_failed)
  end
end
local leases = {}
if want > 0 and state.waiting > 0 then
  -- Nobody takes more than its share of a backlog that is smaller than what all workers would buffer.
  local share = math.ceil(state.waiting / redis.call('SCARD', key.members))
  local quarantined = redis.call('HGET', worker_key(worker_id), 'quarantined') ~= ''
  leases = lease(worker_id, math.min(want, share), max_bytes, quarantined)
end
local ids = {}
for i = 1, #leases, 3 do ids[#ids + 1] = leases[i] end
dropped = table.concat(dropped, ',')
redis.call('HSET', worker_key(worker_id), 'last_seq', seq, 'seeding', seeding, 'dropped', dropped,
  'leases', table.concat(ids))
local others_seeding = finish_if_done()
save_state()
return { state.phase == 'finished' and 'FINISHED' or 'OK', 1, dropped, census(others_seeding), leases }
