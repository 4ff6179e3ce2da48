-- adopt: fingerprints that another scheduler has seen -> adopted, in that scheduler's format.
-- ARGS     epoch, run, worker_id, number (of this call; a repeat has the same), fingerprints (20 bytes each, joined;
--          at most 1,000)
-- RETURNS  OK, new ones, intact (0: Redis was rolled back and has lost the previous call) | LOST | RESYNC | FINISHED
--          | WRONG_TYPE, key, actual, expected
-- COST     O(fingerprints)
-- CRASH    before: nothing; after: repeating it changes nothing
-- USES     keys.key, keys.worker_key, state.is_member, state.load_state, state.stale, types.wrong_type
load_state()
local answer = stale(ARGV[1], tonumber(ARGV[2]))
if answer then return { answer } end
local wrong = wrong_type()
if wrong then return wrong end
local worker_id, number, fingerprints = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local each = {}
for i = 1, #fingerprints, 20 do each[#each + 1] = string.sub(fingerprints, i, i + 19) end
local new = #each > 0 and redis.call('SADD', key.adopted, unpack(each)) or 0
if not is_member(worker_id) then return { 'OK', new, 0 } end
local last = tonumber(redis.call('HGET', worker_key(worker_id), 'adopted') or 0)
redis.call('HSET', worker_key(worker_id), 'adopted', number) -- only after its fingerprints are stored
return { 'OK', new, (last == number or last == number - 1) and 1 or 0 }
