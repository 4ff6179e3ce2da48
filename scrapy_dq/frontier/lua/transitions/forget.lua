-- forget: removes fingerprints from the seen set, so that their requests are new again.
-- ARGS     fingerprints (msgpack array), known_as (msgpack array: fingerprints of the same requests in another
--          scheduler), by (the user or program that forgets them, for the journal)
-- RETURNS  OK, positions (from 0) of fingerprints that were seen | ABSENT | WRONG_TYPE, key, actual, expected
--          | MOVING, from>to
-- COST     O(fingerprints)
-- CRASH    before: nothing; after: a repeat does not find them
-- @include base journal
local fingerprints, known_as, by = ARGV[1], ARGV[2], ARGV[3]
load_sizes()
local wrong = half_moved()
if wrong then return wrong end
if not state.epoch then return { 'ABSENT' } end
local others, known = cmsgpack.unpack(known_as), {}
for i, fingerprint in ipairs(cmsgpack.unpack(fingerprints)) do
  local known_here = remove_seen(fingerprint)
  local adopted = redis.call('SREM', key.adopted, others[i])
  if known_here + adopted > 0 then known[#known + 1] = i - 1 end
end
tidy_seen()
save_state()
send_command('forgets') -- workers cache the fingerprints that they sent recently
if known[1] then note_event('forget', by, #known) end
return { 'OK', known }
