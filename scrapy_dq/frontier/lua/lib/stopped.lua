-- stopped: runs after an error in a script that changes counts. The cause is a bug of this project, data from another
-- program, or a command that this user may no longer call. Redis does not roll a script back, so all its writes stay.
-- Therefore each move stores an entry in its next place before it removes the entry from the old place. After an error,
-- this file stores the counts and the mark `meta.torn`. While the mark exists, each exchange asks for an audit, and the
-- run cannot finish (audit.lua).
-- @include kinds politeness
stopped = function(reply)
  -- If the sizes were not read (key_sizes.lua), the script has not written anything yet.
  local was = key_sizes and key_sizes.seen and redis.pcall('HMGET', key.meta, 'epoch', 'run')
  -- If epoch and run differ from the stored ones, there is no crawl, or the script was about to begin its next run. A
  -- new run is stored last, so a repeat of the script begins it again.
  if was and state.epoch and was[1] == state.epoch and tonumber(was[2]) == state.run then
    if adding and adding_to == 1 then pcall(remove_seen, adding)
    elseif adding then redis.pcall('SREM', adding_to == 2 and key.seeds or key.admitted, adding) end
    pcall(save_partitions)
    local counted = pcall(save_state)
    if state.phase ~= 'finished' then -- a finished run has no entries to audit
      -- A number above 0 means that the stored counts are not certain. If HINCRBY is refused, HSET sets the mark.
      local noted = redis.pcall('HINCRBY', key.meta, 'torn', counted and 0 or 1)
      if type(noted) == 'table' then redis.pcall('HSET', key.meta, 'torn', 0) end
    end
  end
  error(reply, 0)
end
