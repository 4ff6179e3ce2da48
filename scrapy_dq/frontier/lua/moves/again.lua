-- again: in-flight -> delayed, under the next id: the work is done, and is to be done again. In one step, so that the
-- crawl never has two entries of a page, nor none, whatever is killed or rolled back.
-- ARGS     worker_id, ending (as moves.lua returns it: id, next_id, payload, rank, wait_ms, never_sent)
-- RETURNS  true | false (not held)
-- COST     O(log delayed)
-- CRASH    before: the entry stays in flight and is reclaimed; after: nothing to do
-- @include budgets declined messages
local function again(worker_id, ending)
  local lease = read_lease(worker_id, ending.id)
  if not lease then return false end
  local member = ending.next_id .. rank_bytes(ending.rank) .. lease.partition .. '\0' .. ending.payload
  local added = redis.call('ZADD', key.delayed, now_ms() + ending.wait_ms, member)
  state.delayed = state.delayed + added
  end_lease(worker_id, ending.id, lease)
  declined.forget({ ending.id })
  state.done = state.done + 1
  state.sequence = state.sequence + 1 -- as every new entry: see the version of a shard (exchange.lua)
  count_spent(lease.partition, ending.never_sent)
  count_message(lease.payload, -1)
  now_there('delayed')
  return true
end
