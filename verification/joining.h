// A worker joins home first, then every other shard.
#pragma once
#include "moment.h"

inline Byte newest_epoch(const State& state) {
  Byte newest = 0;
  for (int k = 0; k < kShards; ++k) {
    if (state.shards[k].epoch > newest) newest = state.shards[k].epoch;
    for (const Shard& each : state.history[k].shards)
      if (each.epoch > newest) newest = each.epoch;
  }
  for (const Worker& each : state.workers)
    if (each.epoch > newest) newest = each.epoch;
  return newest;
}

inline void join_home(const Moment& now, int w) {
  State next = now.state;
  Worker& me = next.workers[w];
  const Byte id = fresh_id(now.state, kHome);
  const Shard& found = now.state.shards[kHome];
  memset(&me, 0, sizeof me);
  if (found.epoch && found.phase != kOpen) {
    if (!now.state.left.again) {
      me.status = kClosedFinished;
      return now.sink.step(next, "W%d starts: the run is over", w);
    }
    --next.left.again;
  }
  Shard& home = changed(next, kHome);
  if (!home.epoch) {
    const Byte version = home.version;
    home = Shard{};
    home.version = version;
    home.epoch = newest_epoch(now.state) + 1;
    begin_run(home, 1);
    next.epoch = home.epoch, next.run = 0;  // all earlier data is lost, and workers report this
  } else if (home.phase != kOpen) {
    begin_run(home, home.run + 1);
  }
  if (home.run > next.run) {
    next.run = home.run, next.promised = next.told = 0;
    memset(next.processed, 0, sizeof next.processed);
  }
  registered(home, id, 1);
  me.status = kUp, me.epoch = home.epoch, me.run = home.run, me.level = 1;
  me.with[kHome].joined = kNoted, me.with[kHome].id = id, me.with[kHome].seq = 1;
  WorkerSteps(next, w, now.model).raise();
  now.sink.step(next, "W%d joins run %d as %d", w, home.run, id);
}

// The worker creates the shard before home notes it. If the worker dies in between, the shard does not count as
// existing.
inline void join_shard(const Moment& now, int w, int k) {
  State next = now.state;
  Worker& me = next.workers[w];
  Dialogue& d = me.with[k];
  const Shard& home = now.state.shards[kHome];
  if (d.joined) {
    if (home.epoch != me.epoch) {
      WorkerSteps(next, w, now.model).close(kClosedLost);
      return now.sink.step(next, "W%d finds home gone", w);
    }
    d.joined = kNoted;
    if (!(home.created & 1 << k)) changed(next, kHome).created |= 1 << k;
    return now.sink.step(next, "W%d: home notes shard %d", w, k);
  }
  const Shard& found = now.state.shards[k];
  const bool noted = home.epoch == me.epoch && home.created & 1 << k;
  if (found.epoch != me.epoch && noted) {
    WorkerSteps(next, w, now.model).close(kClosedLost);
    return now.sink.step(next, "W%d finds shard %d gone", w, k);
  }
  if (found.epoch == me.epoch && found.run > me.run) {
    WorkerSteps(next, w, now.model).close(kClosedFinished);
    return now.sink.step(next, "W%d finds shard %d in a later run", w, k);
  }
  Shard& shard = changed(next, k);
  if (shard.epoch != me.epoch) {
    const Byte version = shard.version;
    shard = Shard{};
    shard.version = version, shard.epoch = me.epoch;
    begin_run(shard, me.run);
  } else if (shard.run < me.run || shard.phase == kCleared) {
    begin_run(shard, me.run);
  }
  d.joined = kRegistered, d.id = fresh_id(now.state, k), d.seq = 1;
  registered(shard, d.id, 0);
  now.sink.step(next, "W%d joins shard %d as %d", w, k, d.id);
}
