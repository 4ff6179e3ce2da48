// All steps that are possible in a state: steps of workers, of Redis and of the network, and faults.
#pragma once
#include "dying.h"
#include "ending.h"
#include "joining.h"
#include "reach.h"

// -- A worker that is up or stopping.

inline void finish_request(const Moment& now, int w, int r) {
  State next = now.state;
  WorkerSteps(next, w, now.model).done(r);
  check_processed(now, next, r);
  now.sink.step(next, "W%d is done with %d", w, r);
}

inline void pages(const Moment& now, int w) {
  const Worker& me = now.state.workers[w];
  const Site& site = now.model.site;
  const bool is_up = me.status == kUp;
  const auto act = [&](auto change, const char* what, int r) {
    State next = now.state;
    WorkerSteps steps(next, w, now.model);
    change(steps);
    now.sink.step(next, what, w, r);
  };
  for (int r = 0; r < site.count; ++r) {
    const Set one = only(r);
    const bool from_start = is_up && site.start & one && !me.start_over;
    const bool later = is_up && w == 0 && me.start_over && site.extra & one;
    const bool first_left = !(site.start & ~me.yielded & (one - 1));
    if (!(me.yielded & one) && ((from_start && first_left) || later))
      act([&](WorkerSteps& s) { s.yield_parentless(r); }, "W%d yields %d", r);
    if (is_up && me.buffer & one && first(me.buffer) == r && !me.running)
      act([&](WorkerSteps& s) { s.run(r); }, "W%d runs %d", r);
    if (!(me.running & one)) continue;
    finish_request(now, w, r);
    if (me.status == kStopping) act([&](WorkerSteps& s) { s.give_up(r); }, "W%d gives up %d", r);
  }
}

inline void terminate(const Moment& now, int w) {
  State next = now.state;
  --next.left.term;
  WorkerSteps(next, w, now.model).stop();
  now.sink.step(next, "SIGTERM to W%d", w);
}

inline void work(const Moment& now, int w) {
  const Worker& me = now.state.workers[w];
  for (int k = 1; k < kShards && !me.cut; ++k)
    if (me.with[k].joined < kNoted) {
      join_shard(now, w, k);
      break;
    }
  pages(now, w);
  for (int k = 0; k < kShards; ++k) converse(now, w, k);
  if (me.status == kUp && now.state.left.term) terminate(now, w);
  if (me.status == kStopping) leave(now, w);
  if (kShards > 1 && me.status == kUp) Collect(now, w).step();
  if (!now.model.rules.release_by_rejoin_only) release_unknown(now, w);
  if (now.state.left.kill) kill(now, w);
  if (kShards > 1) reach(now, w);
}

// -- Redis.

inline void pass_horizon(const Moment& now, int k) {
  bool confirmed = false;
  for (const Worker& each : now.state.workers) confirmed |= each.with[k].log & ~each.with[k].ripe;
  if (!now.state.history[k].count && !confirmed) return;
  State next = now.state;
  next.history[k] = History{};
  for (int w = 0; w < kWorkers; ++w) WorkerSteps(next, w, now.model).ripen(k);
  now.sink.step(next, "a horizon passes at shard %d", k);
}

inline void roll_back(const Moment& now, int k) {
  const History& past = now.state.history[k];
  for (int back = 0; back < past.count; ++back) {
    State next = now.state;
    --next.left.roll;
    next.shards[k] = past.shards[back];
    History rest = {};
    if (next.left.roll)
      for (int j = back + 1; j < past.count; ++j) rest.shards[rest.count++] = past.shards[j];
    next.history[k] = rest;
    if (!next.left.roll)
      for (History& each : next.history) each = History{};
    now.sink.step(next, "shard %d is ROLLED BACK by %d", k, back + 1);
  }
}

inline void flush(const Moment& now, int k) {
  State next = now.state;
  --next.left.flush;
  next.shards[k] = Shard{};
  next.history[k] = History{};
  now.sink.step(next, "shard %d is FLUSHED", k);
}

// A worker that has left a finished run may start again for a next run.
inline void closed(const Moment& now, int w) {
  if (now.state.workers[w].with[kHome].joined) {
    leave_finished(now, w);
    if (now.state.left.kill) kill(now, w);
  } else if (now.state.left.again) {
    join_home(now, w);
  }
}

inline void all_steps(const Moment& now) {
  for (int w = 0; w < kWorkers; ++w) {
    switch (now.state.workers[w].status) {
      case kDown: case kLeft: join_home(now, w); break;
      case kUp: case kStopping: work(now, w); break;
      case kClosedFinished: closed(now, w); break;
      default: break;
    }
  }
  reclaim(now);
  late_arrivals(now);
  for (int k = 0; k < kShards; ++k) {
    pass_horizon(now, k);
    if (now.state.left.roll) roll_back(now, k);
    if (now.state.left.flush && now.state.shards[k].epoch) flush(now, k);
  }
}
