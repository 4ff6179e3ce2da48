-- adopt: fingerprints that another scheduler had seen -> adopted, in its own notation.
-- ARGS     epoch, run, fingerprints (of 20 bytes, joined; at most 1,000)
-- RETURNS  OK, new ones | LOST | RESYNC | FINISHED | WRONG_TYPE, key, actual, expected
-- COST     O(fingerprints)
-- CRASH    before: nothing; after: to do it again changes nothing
load_state()
local answer = stale(ARGV[1], tonumber(ARGV[2]))
if answer then return { answer } end
local wrong = wrong_type()
if wrong then return wrong end
local fingerprints = {}
for i = 1, #ARGV[3], 20 do fingerprints[#fingerprints + 1] = string.sub(ARGV[3], i, i + 19) end
return { 'OK', #fingerprints > 0 and redis.call('SADD', key.adopted, unpack(fingerprints)) or 0 }
