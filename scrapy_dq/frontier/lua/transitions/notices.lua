-- notices: returns the kinds of events of this run that no call has returned before.
-- ARGS     dead (how many dead letters are in other shards), outage_ms (the longest outage in other shards; 0: none)
-- RETURNS  OK, run, census, kinds (finished: the run is finished; dead: there are dead letters; deaths: three or more
--          workers have died; outage: an outage lasted a minute or more) | ABSENT
-- COST     O(events of the journal)
-- CRASH    before: nothing; after, reply lost: these kinds are never returned again
-- @include base journal
local DEATHS, OUTAGE_MS = 3, 60000
load_sizes()
if not state.epoch then return { 'ABSENT' } end
local dead, longest_ms, deaths = tonumber(ARGV[1]), tonumber(ARGV[2]), 0
local events = redis.pcall('LRANGE', key.journal, -MAX_EVENTS, -1)
for _, packed in ipairs(events.err and {} or events) do
  local read, event = pcall(cmsgpack.unpack, packed)
  if read and type(event) == 'table' and event[1] == state.run then
    if event[3] == 'died' then deaths = deaths + 1 end
    if event[3] == 'outage' and type(event[5]) == 'number' then longest_ms = math.max(longest_ms, event[5]) end
  end
end
local counts, kinds = census(), {}
local before = string.format('%.0f:', state.run)
local noticed = redis.call('HGET', key.meta, 'noticed') or ''
if string.sub(noticed, 1, #before) ~= before then noticed = before end
local function notice(kind, has_happened)
  if not has_happened or string.find(noticed, kind, 1, true) then return end
  kinds[#kinds + 1], noticed = kind, noticed .. kind .. ' '
end
notice('finished', state.phase == 'finished')
notice('dead', counts[4] + dead > 0)
notice('deaths', deaths >= DEATHS)
notice('outage', longest_ms >= OUTAGE_MS)
if kinds[1] then redis.call('HSET', key.meta, 'noticed', noticed) end
return { 'OK', state.run, counts, kinds }
