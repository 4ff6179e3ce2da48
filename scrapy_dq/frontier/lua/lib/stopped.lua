-- stopped: runs after an error in a script that changes counts. The cause is a bug of ours, foreign data, or a command
-- that this user may no longer call. Scripts have no roll-back: all writes stay. So each move stores an entry in its
-- next place before it removes the entry from the last one, and this file stores the counts and the mark `meta.torn`.
-- While the mark exists, each exchange asks for an audit, and the run cannot finish (audit.lua).
-- @include kinds politeness
stopped = function(reply)
  -- Nothing is written before all sizes are read.
  local was = key_sizes and key_sizes.seen and redis.pcall('HMGET', key.meta, 'epoch', 'run')
  -- Otherwise there is no crawl, or its next run was about to begin. A run is stored last, so a repeat begins it again.
  if was and state.epoch and was[1] == state.epoch and tonumber(was[2]) == state.run then
    if adding and adding_to == 1 then pcall(remove_seen, adding)
    elseif adding then redis.pcall('SREM', adding_to == 2 and key.seeds or key.admitted, adding) end
    pcall(save_partitions)
    local counted = pcall(save_state)
    if state.phase ~= 'finished' then -- else nothing is left
      -- Above 0: the counts are not certain. Redis may deny either of these commands.
      local noted = redis.pcall('HINCRBY', key.meta, 'torn', counted and 0 or 1)
      if type(noted) == 'table' then redis.pcall('HSET', key.meta, 'torn', 0) end
    end
  end
  error(reply, 0)
end
