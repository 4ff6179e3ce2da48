-- endings: reads the moves of an exchange, and applies the moves that end a lease.
-- @include declined messages
-- The moves of an exchange, as frontier/moves.py and wire.py write them. Only this file knows the field positions:
--   put      0, id, admission, token, priority, start, payload, partition [, wait_ms, not_before_ms, reason, known_as
--            [, most]]
--   ack      1, id, never_sent (true: no site got the request, so that it counts against no budget)
--   release  2, id
--   bury     3, id, reason
--   fail     4, id, reason, label, never_sent
--   defer    5, id
--   again    6, id, next_id, payload, priority, start, wait_ms, never_sent
--   decline  7, id, reason, fingerprint
local KIND = { PUT = 0, ACK = 1, RELEASE = 2, BURY = 3, FAIL = 4, DEFER = 5, AGAIN = 6, DECLINE = 7 }
-- Returns the fields of a put as the arguments of put(), not as a table: to make tables would take a tenth of the time
-- of an exchange.
local function fields_of_put(move)
  return move[2], move[3], move[4], order_rank(move[5], move[6]), unpack(move, 7, 13)
end
-- Returns three lists: the puts; their positions in the exchange (from 0); and the moves that end leases, in order, as
-- tables with kind, id and fields. Acks and defers are collected: one table has the ids of acks, another one the ids of
-- acks whose requests were never sent, and a third one the ids of defers. After another move that ends a lease, new
-- tables begin. So an ack and a defer of one lease may change places, but this does not change the result.
local function read_moves(packed)
  local puts, positions, endings, many, n = {}, {}, {}, {}, 0
  for i, move in ipairs(cmsgpack.unpack(packed)) do
    local kind = move[1]
    if kind == KIND.PUT then
      n = n + 1
      puts[n], positions[n] = move, i - 1
    elseif kind == KIND.ACK or kind == KIND.DEFER then
      local group = move[3] and 'never_sent' or kind
      local ids = many[group]
      if not ids then
        ids = {}
        many[group], endings[#endings + 1] = ids, { kind = kind, ids = ids, never_sent = move[3] }
      end
      ids[#ids + 1] = move[2]
    elseif kind == KIND.AGAIN then
      endings[#endings + 1] = { kind = kind, id = move[2], next_id = move[3], payload = move[4],
        rank = order_rank(move[5], move[6]), wait_ms = move[7], never_sent = move[8] }
      many = {}
    else
      endings[#endings + 1] = { kind = kind, id = move[2], reason = move[3], label = move[4], never_sent = move[5] }
      many = {}
    end
  end
  return puts, positions, endings
end
-- Ends a lease whose work is over, and counts it as *counted* (done or failed; nil: not at all).
local function end_work(worker_id, id, lease, counted, never_sent)
  end_lease(worker_id, id, lease)
  if counted then
    state[counted] = state[counted] + 1
    count_spent(lease.partition, never_sent)
  end
  declined.forget({ id })
  count_message(lease.payload, -1)
end
-- release: in-flight -> its exact place in the backlog; no attempt is charged. An entry that some worker has declined
-- goes to `declined` instead, so that the same worker does not get it again.
-- ARGS     worker_id, id, lease (as read_lease() returns it)
-- RETURNS  nothing
-- COST     O(log returned)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function release(worker_id, id, lease)
  if declined.of(id) then declined.wait(id, lease)
  else put_back(lease.quarantined and 'quarantine' or 'returned', id, lease) end
  end_lease(worker_id, id, lease)
end
-- decline: in-flight -> declined. This worker's code cannot serve the entry, so Redis offers it to the other workers.
-- ARGS     worker_id, id, lease, reason, fingerprint (of the request; empty: none)
-- RETURNS  nothing
-- COST     O(log declined + workers that have declined it)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function decline(worker_id, id, lease, reason, fingerprint)
  declined.note(worker_id, id, reason, fingerprint)
  declined.wait(id, lease)
  end_lease(worker_id, id, lease)
end
-- ack: in-flight -> gone. Only the worker that holds the lease may ack. Ids of leases that it does not hold, because
-- they were reclaimed or acked before, are ignored.
-- ARGS     worker_id, ids, never_sent (true: no site got the requests)
-- RETURNS  nothing
-- COST     O(ids)
-- CRASH    before: the entries stay in flight and are reclaimed; after: nothing to do
local function ack(worker_id, ids, never_sent)
  if state.limited or state.claimed > 0 or holds_suspect or may_exist('messages') or may_exist('decliners') then
    for _, id in ipairs(ids) do
      local lease = read_lease(worker_id, id)
      -- A claimed start payload is not counted, because the requests made from it are counted.
      if lease then end_work(worker_id, id, lease, lease.partition ~= CLAIMED and 'done', never_sent) end
    end
  else
    -- Here no count depends on the records of the leases, so they are not read.
    local acked = redis.call('HDEL', in_flight_key(worker_id), unpack(ids))
    state.in_flight, state.done = state.in_flight - acked, state.done + acked
    if never_sent then state.never_sent = state.never_sent + acked end
  end
end
-- bury: in-flight -> dead letter, kept with its reason for inspection.
-- ARGS     worker_id, id, lease, reason
-- RETURNS  nothing
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function bury(worker_id, id, lease, reason)
  note_added('dead')
  redis.call('HSET', key.dead, id, cmsgpack.pack({
    reason, wall_ms(), worker_id, lease.attempts, lease.place, lease.payload, lease.partition,
  }))
  end_work(worker_id, id, lease)
end
-- fail: in-flight -> failed. The failure is counted, and the newest failed requests are kept as copies.
-- ARGS     worker_id, id, lease, ending (as read_moves() returns it: reason, label, never_sent), keep (how many copies)
-- RETURNS  nothing
-- COST     O(1)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function fail(worker_id, id, lease, ending, keep)
  redis.call('LPUSH', key.failed, cmsgpack.pack({
    id, ending.label, ending.reason, wall_ms(), worker_id, lease.attempts, lease.place, lease.payload,
    lease.partition,
  }))
  end_work(worker_id, id, lease, 'failed', ending.never_sent)
  redis.call('LTRIM', key.failed, 0, keep - 1)
end
-- again: in-flight -> delayed, under the id next_id. The work is done, and the page waits for its next visit. One step
-- ends the lease and stores the next visit, so that after any kill or roll-back the crawl has exactly one entry of the
-- page.
-- ARGS     worker_id, id, lease, ending (as read_moves() returns it: next_id, payload, rank, wait_ms, never_sent)
-- RETURNS  nothing
-- COST     O(log delayed)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
local function again(worker_id, id, lease, ending)
  local member = ending.next_id .. rank_bytes(ending.rank) .. lease.partition .. '\0' .. ending.payload
  state.delayed = state.delayed + redis.call('ZADD', key.delayed, now_ms() + ending.wait_ms, member)
  note_added('delayed')
  end_work(worker_id, id, lease, 'done', ending.never_sent)
  state.sequence = state.sequence + 1 -- like every new entry: see Census.version
end
-- defer: in-flight -> in-flight. The work is done, but the end of the lease waits until the puts of this work in other
-- shards are retired (deferred_ends.py). Until then, the lease counts only against budgets and max_pages. If its worker
-- dies, the entry does not become a suspect.
-- ARGS     worker_id, ids (at most 1,000)
-- RETURNS  nothing
-- COST     O(ids)
-- CRASH    before: the entries stay in flight unchanged; after: they are reclaimed, and no attempt is charged
local function defer(worker_id, ids)
  local changed = {}
  for i, record in ipairs(redis.call('HMGET', in_flight_key(worker_id), unpack(ids))) do
    -- Skip a lease without a record, because it was reclaimed, and a lease with DEFERRED, because it is deferred
    -- already.
    if record and string.sub(record, 10, 10) ~= DEFERRED then
      local flags = string.byte(record, 9)
      if flags >= 128 or holds_suspect == ids[i] then
        redis.call('HSET', worker_key(worker_id), 'quarantined', '')
        holds_suspect = false
      end
      changed[#changed + 1] = ids[i]
      changed[#changed + 1] = string.sub(record, 1, 8) .. string.char(flags % 128) .. DEFERRED .. string.sub(record, 10)
      if state.limited then
        local partition = partition_of(record)
        lease_ended(partition, ids[i])
        count_busy(DEFERRED .. partition, 1)
      end
    end
  end
  if changed[1] then redis.call('HSET', in_flight_key(worker_id), unpack(changed)) end
end
-- settle: applies the moves of an exchange that end leases, in order. If two moves end one lease, the first counts.
-- ARGS     worker_id, endings (as read_moves() returns them), keep_failed
-- RETURNS  nothing
-- COST     O(moves)
-- CRASH    see the header of each move
local function settle(worker_id, endings, keep_failed)
  if endings[1] and endings[1].kind ~= KIND.ACK then write_first() end
  for _, ending in ipairs(endings) do
    local kind = ending.kind
    local id, lease = ending.id, ending.id and read_lease(worker_id, ending.id)
    if kind == KIND.ACK then ack(worker_id, ending.ids, ending.never_sent)
    elseif kind == KIND.DEFER then defer(worker_id, ending.ids)
    elseif not lease then -- the lease was reclaimed, or has ended before
    elseif kind == KIND.RELEASE then release(worker_id, id, lease)
    elseif kind == KIND.DECLINE then decline(worker_id, id, lease, ending.reason, ending.label)
    elseif kind == KIND.BURY then bury(worker_id, id, lease, ending.reason)
    elseif kind == KIND.AGAIN then again(worker_id, id, lease, ending)
    else fail(worker_id, id, lease, ending, keep_failed) end
  end
end
