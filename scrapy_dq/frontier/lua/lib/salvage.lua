-- salvage: runs after an error. Writes the incomplete moves (midway.lua) and the counts to `torn`, with any command
-- that is allowed: rights do not change during a script. The next script finds it, and mend.lua runs first.
-- USES     keys.key, midway, midway.adding, midway.adding_to, midway.falling_due, midway.moving, midway.opening,
--          midway.opening_rank, midway.popped, midway.popped_head, midway.popped_taken, scripts.reply, state,
--          state.load_state, state.touched
local torn, found = {}, false
local function note(name, value)
  if value then torn[name], found = value, true end
end
note('token', adding and { adding_to, adding })
note('lease', moving)
note('due', falling_due)
note('list', opening and { opening, opening_rank })
local granted, pending, grants = {}, {}, not midway.remembered and midway.grants
for i, id in ipairs(grants and grants.ids or {}) do
  if i <= grants.written then granted[#granted + 1] = id else pending[#pending + 1] = grants.records[i] end
end
for i = popped and popped_taken + 1 or 1, #(popped or {}) do pending[#pending + 1] = popped_head .. popped[i] end
note('granted', granted[1] and granted)
note('pending', pending[1] and pending)
note('seen', midway.seen and midway.seen())
note('deltas', midway.deltas)
note('spent', midway.spent and next(midway.spent) and midway.spent)
for _, name in ipairs({ 'seen_kind', 'registering', 'removing', 'remembered', 'at' }) do note(name, midway[name]) end
local partitions = {}
for partition in pairs(touched) do partitions[#partitions + 1] = partition end
note('partitions', partitions[1] and partitions)
local mine = state
if mine then
  -- After an error before the first write there is nothing to mend.
  if not pcall(load_state) then found = true end
  for name, value in pairs(mine) do
    -- These change even if nothing was written: time passes, and damage is detected.
    if name ~= 'clock' and name ~= 'offset' and name ~= 'damage' and name ~= 'seen' and state[name] ~= value then
      found = true
    end
  end
end
if found then
  torn.state, torn.worker, torn.seq, torn.nonce = mine, midway.worker, midway.seq, midway.nonce
  local packed = cmsgpack.pack(torn)
  local noted
  for _, write in ipairs({ { 'SADD', packed }, { 'HSET', '', packed }, { 'ZADD', 0, packed }, { 'RPUSH', packed },
    { 'LPUSH', packed } }) do
    noted = redis.pcall(write[1], key.torn, unpack(write, 2))
    if type(noted) == 'number' then break end
  end
  if type(noted) ~= 'number' and (pending[1] or moving or falling_due) then
    local lost = ' (and no allowed command could save the requests that the script was moving: they are lost)'
    if type(reply) == 'table' then reply.err = reply.err .. lost else reply = tostring(reply) .. lost end
  end
end
error(reply, 0)
