// The steps of a worker that cannot reach a shard, while other workers reach it (sharding/reach.py).
#pragma once
#include "talking.h"

// From now on, no call of worker w reaches shard k, and w gets no answer. Only its last call may still arrive late.
inline void cut(const Moment& now, int w, int k) {
  const Dialogue& before = now.state.workers[w].with[k];
  State next = now.state;
  --next.left.cut;
  Worker& me = next.workers[w];
  me.cut = Byte(k + 1);
  me.with[k].reply = {};
  now.sink.step(next, "W%d is CUT OFF from shard %d", w, k);
  Call call = before.call;
  if (before.reply.kind || !(call.kind || next_call(now, w, k, call)) || !copy(next, k, call)) return;
  me.with[k].call = call;
  if (k == kHome && call.kind == kExchange && !call.seeding) WorkerSteps(next, w, now.model).lower();
  now.sink.step(next, "W%d is CUT OFF from shard %d, and its call is DELAYED", w, k);
}

// Whether worker w sees another live worker that reaches all shards.
inline bool has_witness(const State& state, int w) {
  const Worker& me = state.workers[w];
  const int seen_at = is_cut_from(me, kHome) ? kShards - 1 : kHome;
  for (int other = 0; other < kWorkers; ++other) {
    const Worker& each = state.workers[other];
    const bool lives = each.status == kUp || each.status == kStopping;
    if (other != w && lives && !each.cut && each.epoch == me.epoch && each.with[seen_at].joined) return true;
  }
  return false;
}

inline void reach(const Moment& now, int w) {
  const Worker& me = now.state.workers[w];
  const auto act = [&](auto change, const char* what) {
    State next = now.state;
    WorkerSteps steps(next, w, now.model);
    change(next, steps);
    now.sink.step(next, what, w, me.cut - 1);
  };
  if (!me.cut) {
    bool has_joined = true;
    for (const Dialogue& d : me.with) has_joined &= d.joined == kNoted;
    for (int k = 0; k < kShards && has_joined && now.state.left.cut; ++k) cut(now, w, k);
    return;
  }
  if (now.model.rules.gives_up_on_shard && !me.gave_up && has_witness(now.state, w))
    act([](State&, WorkerSteps& s) { s.give_up_on_shard(); }, "W%d gives up on shard %d");
  if (now.model.rules.closes_cut_off && me.gave_up && me.status == kUp &&
      WorkerSteps(const_cast<State&>(now.state), w, now.model).keeps_waiting())
    act([](State&, WorkerSteps& s) { s.stop(); }, "W%d closes: it is cut off from shard %d");
  if (!now.state.left.mend) return;
  act([&](State& next, WorkerSteps&) {
    Worker& mended = next.workers[w];
    --next.left.mend;
    mended.cut = mended.gave_up = 0;
    if (is_cut_from(me, kHome)) mended.raised = kNotRaised;  // until home answers
  }, "W%d reaches shard %d again");
}
