-- adopt: another scheduler's fingerprints -> adopted, unchanged; or -> seen, if this crawl makes the same fingerprints.
-- ARGS     epoch, run, worker_id, number (of this call; a repeat has the same number), native (1: this crawl makes the
--          same fingerprints), fingerprints (msgpack array; at most 1,000)
-- RETURNS  OK, how many were new, intact (0: Redis was rolled back and has lost the previous call, or the worker is not
--          a member) | LOST | RESYNC | FINISHED | WRONG_TYPE, key, actual, expected
-- COST     O(fingerprints)
-- CRASH    before: nothing; after: a repeat changes nothing
-- @include base
load_state()
local answer = stale(ARGV[1], tonumber(ARGV[2]))
if answer then return { answer } end
load_sizes()
local worker_id, number, native, fingerprints = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', cmsgpack.unpack(ARGV[6])
local new = 0
if native then
  for _, fingerprint in ipairs(fingerprints) do
    if seen().add(fingerprint) then new = new + 1 end
  end
  tidy_seen()
  save_state()
elseif #fingerprints > 0 then
  new = redis.call('SADD', key.adopted, unpack(fingerprints))
end
if not is_member(worker_id) then return { 'OK', new, 0 } end
local last = tonumber(redis.call('HGET', worker_key(worker_id), 'adopted') or 0)
redis.call('HSET', worker_key(worker_id), 'adopted', number) -- only after its fingerprints are stored
return { 'OK', new, (last == number or last == number - 1) and 1 or 0 }
