-- follow: a shard follows home, which has the epoch and the run of the crawl (docs/internals/shards.md).
-- Whether a worker that joins begins a run here.
-- @include member
local function is_over(of_run)
  if of_run < 0 or not state.epoch then return state.phase == 'finished' end
  return state.run < of_run or redis.call('HGET', key.meta, 'cleared') == '1'
end
-- Before a worker joins it. *run*: of home; -1: this is home. Returns LOST if it existed (*exists*) and is gone,
-- LATER if home's run is over here, OTHER if it has another crawl than *replaces*, or has been cleared at the end of
-- home's run, else nothing. What *replaces* has is deleted.
-- RACE: home was lost while a worker joined, and the other crawl is the new one; or the run has ended meanwhile, and
-- this shard is cleared. So a worker asks home once more, and replaces only what it had found before that.
local function follow_home(epoch, run, exists, replaces)
  if run < 0 then return end
  if state.epoch == epoch then
    if state.run > run then return 'LATER' end
    return state.run == run and is_over(run) and epoch ~= replaces and 'OTHER' or nil
  end
  if exists then return 'LOST' end
  if not state.epoch then return end
  if state.epoch ~= replaces then return 'OTHER' end
  clear_run(false)
  redis.call('UNLINK', key.meta, key.dead, key.failed, key.limits, key.spent)
  load_state()
end
