-- delayed: moves delayed entries into the backlog when they are due. A due entry gets the place of an entry that is put
-- at that moment.
-- @include partition put
-- Moves due entries into the backlog, until about *limit* entries or *max_bytes* bytes are moved.
local function promote(limit, max_bytes)
  if not may_exist('delayed') then return end
  repeat
    local due = redis.call('ZRANGEBYSCORE', key.delayed, '-inf', now_ms(), 'LIMIT', 0, 20)
    if due[1] then write_first() end
    for _, member in ipairs(due) do
      local id, rank, partition, payload = read_delayed(member)
      append(id, rank, partition, payload)
      redis.call('ZREM', key.delayed, member)
      state.delayed = state.delayed - 1
      max_bytes = max_bytes - #member
    end
    limit = limit - #due
  until #due < 20 or limit <= 0 or max_bytes <= 0
end
-- Applies the passage of time: moves due entries, returns partitions to the rotation if they may be served within
-- *ahead* ms, and deletes times that are past.
local function tidy(ahead, max_bytes)
  promote(500, max_bytes)
  if polite then
    wake_resting(ahead)
    forget_past(key.earliest)
    forget_past(key.blocked)
  end
  classify_touched(ahead)
end
-- Returns the milliseconds until the next entry is due or a partition's wait ends; -1 if nothing waits for a time.
local function next_due_ms()
  local first = math.huge
  local function consider(set)
    first = math.min(first, tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or math.huge))
  end
  if may_exist('delayed') then consider(key.delayed) end
  if polite ~= false then consider(key.resting) end
  return first < math.huge and math.max(0, first - now_ms()) or -1
end
