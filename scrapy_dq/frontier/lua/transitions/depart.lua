-- depart: what has arrived in another shard during a reshard, and is on its disk, leaves its old one.
-- ARGS     epoch, change, owner (see reshard.lua), label (see arrive.lua; messages, declined), rank, partition (of a
--          backlog),
--          count, stay (of a list: how many elements from its head on were read, and msgpack: the positions, from 1
--          on, of those that stay here: they go to its tail), left (how many are still to be read, before the list
--          was read once), sent (msgpack: shard, elements that went there, ...), items (msgpack: members, fields or
--          tokens), gave (msgpack: shard, how often something has arrived there from here, ...)
-- RETURNS  OK | CHANGED (another process, or reshard) | WRONG_TYPE, key, actual, expected
-- COST     O(count + items)
-- CRASH    before: they are in both shards: the repeat of the reshard moves none of them twice; after: nothing to do
local epoch, change, owner, label, rank, partition = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local count, stay, left = tonumber(ARGV[7]), cmsgpack.unpack(ARGV[8]), ARGV[9]
local sent, items, gave = cmsgpack.unpack(ARGV[10]), cmsgpack.unpack(ARGV[11]), cmsgpack.unpack(ARGV[12])
load_sizes()
if not is_owned(epoch, change, owner) then return { 'CHANGED' } end
for i = 1, #gave, 2 do redis.call('HSET', key.meta, 'reshard:gave ' .. gave[i], gave[i + 1]) end
if label == 'backlog' or label == 'failed' then
  local list = label == 'failed' and key.failed or list_of(rank, partition)
  local read = #stay > 0 and redis.call('LRANGE', list, 0, count - 1) or {}
  for _, position in ipairs(stay) do items[#items + 1] = read[position] end
  -- First added, then removed: if the script is stopped in between, they are there twice, and none is lost.
  in_parts('RPUSH', list, items)
  redis.call('LTRIM', list, count, -1)
  local of = label == 'failed' and label or 'waiting'
  state[of] = math.max(0, state[of] - count + #stay)
  for i = 1, #sent, 2 do redis.call('HINCRBY', key.meta, 'reshard:to ' .. sent[i], sent[i + 1]) end
  local at = label == 'failed' and label or ARGV[5]
  redis.call('HSET', key.meta, 'reshard:at', at .. ':' .. partition, 'reshard:left', left)
  if label == 'backlog' then
    touched[partition] = true
    if redis.call('EXISTS', list) == 0 then
      local band = rank_bytes(rank)
      if redis.call('HGET', key.bands, partition) == band then remove_best_band(partition)
      else redis.call('ZREM', key.more_bands, partition .. '\0' .. band) end
    end
  end
elseif label == 'returned' or label == 'quarantine' or label == 'declined' then
  state.waiting = math.max(0, state.waiting - in_parts('ZREM', key[label], items))
  for _, member in ipairs(items) do touched[string.match(member, '^[^%z]*')] = true end
elseif label == 'delayed' then
  state.delayed = math.max(0, state.delayed - in_parts('ZREM', key.delayed, items))
elseif label == 'earliest' or label == 'blocked' then
  in_parts('ZREM', key[label], items)
elseif label == 'dead' or label == 'limits' or label == 'spent' then
  in_parts('HDEL', key[label], items)
elseif label == 'seen' then
  in_parts(seen().remove, key.seen, items)
elseif label == 'messages' then
  -- What was made of them goes to any shards, which could not tell home that it is done: it is stored, which is enough.
  in_parts('HDEL', key.messages, items)
  for _, field in ipairs(items) do count_message(of_message(field, ''), 0) end
elseif label == 'tokens' then
  redis.call('HSET', key.meta, 'reshard:tokens', 1) -- all were copied
else
  in_parts('SREM', key[label], items)
end
classify_touched(0)
save_state()
return { 'OK' }
