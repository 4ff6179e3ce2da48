-- claim: payloads that others fed (start_keys, the first one first) -> in-flight. Each becomes an entry; if it
-- comes back, it waits in a partition of its own. Its worker makes requests of it, puts these, and then acks it.
-- ARGS     want, kind (list: from its head; set; zset: highest score first), mark (what the entry's payload begins
--          with), id_stem (8 bytes, never used before)
-- RETURNS  nothing; in grants, as a lease
-- COST     O(want), of a zset O(want * log members)
-- CRASH    before: the payload stays where it was; after: it is in flight, and is reclaimed like any lease
-- USES     grants, grants.grant, keys.start_keys, politeness.count_busy, put.wrong_lists, state, state.CLAIMED,
--          types.is_wrong
local CLAIMED_HEAD = struct.pack('>I8', 0) .. '\0' .. CLAIMED .. '\0'
local POP = { list = 'LPOP', set = 'SPOP', zset = 'ZPOPMAX' }
local function claim(want, kind, mark, id_stem)
  local claimed = 0
  for _, name in ipairs(start_keys) do
    while claimed < want and grants.bytes < grants.max_bytes do
      local popped = redis.pcall(POP[kind], name)
      if type(popped) == 'table' and popped.err then
        -- Only now: most exchanges find them as they should be.
        local wrong = is_wrong(name, kind)
        if not wrong then error(popped.err, 0) end
        wrong_lists = wrong
        break
      end
      local payload = popped
      if type(popped) == 'table' then payload = popped[1] end
      if not payload then break end
      state.sequence = state.sequence + 1
      -- By sequence: a repeat of an exchange that was stopped half-way has the same stem.
      local id = id_stem .. struct.pack('>I4', state.sequence % 4294967296)
      grant(id, CLAIMED_HEAD .. struct.pack('>I8', state.sequence) .. id .. mark .. payload)
      claimed = claimed + 1
    end
  end
  state.in_flight = state.in_flight + claimed
  if claimed > 0 then state.claimed = 1 end
  count_busy(CLAIMED, claimed)
end
