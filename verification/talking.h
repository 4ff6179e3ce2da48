// Calls between a worker and a shard: exchanges and rejoins, their answers, and the network's faults.
#pragma once
#include "promises.h"

inline void apply_and_check(const Moment& now, State& next, int k, const Call& call, Reply& reply) {
  const bool was_open = next.shards[kHome].phase == kOpen;
  apply(next, k, call, reply, now.model);
  if (k == kHome && was_open && next.shards[kHome].phase == kFinished) check_end(now, next);
}

// Whether a call changes more than the number of the last exchange. The model leaves out all other exchanges.
inline bool matters(const Moment& now, const Worker& me, int k, const Call& call, bool is_quiet) {
  if (call.count) return true;
  Shard after = now.state.shards[k];
  const Reply reply = exchange(after, call, k == kHome, now.model.rules);
  const bool is_over = reply.kind == kNotAppliedFinished || reply.kind == kAppliedFinished;
  if (is_over && k == kHome) return (me.start_over && !me.parentless && is_quiet && !me.cut) || call.ripe;
  if (k == kHome && (call.seeding != me.level || (kShards > 1 && call.seeding && !me.raised))) return true;
  return call.ripe || reply.kind != kOk || reply.leases;
}

// Compose a worker's next call to a shard; return false if there is none.
inline bool next_call(const Moment& now, int w, int k, Call& call) {
  const Worker& me = now.state.workers[w];
  const Dialogue& d = me.with[k];
  if (d.joined < kNoted || d.call.kind || is_cut_from(me, k)) return false;
  const WorkerSteps steps(const_cast<State&>(now.state), w, now.model);
  if (d.rejoins) {
    call = steps.composed_rejoin(k, fresh_id(now.state, k));
    return true;
  }
  call = steps.composed_exchange(k);
  return matters(now, me, k, call, steps.quiet());
}

inline void hear(const Moment& now, int w, int k) {
  State next = now.state;
  Answers(next, w, now.model).receive(k);
  check_close(now, next, w);
  now.sink.step(next, "W%d hears from shard %d", w, k);
  if (!now.state.left.lose) return;
  State lost = now.state;
  --lost.left.lose;
  lost.workers[w].with[k].reply = {};
  now.sink.step(lost, "the reply of shard %d to W%d is LOST", k, w);
}

// Add a copy of a call, which will arrive at any later time; return false if no further copy is allowed.
inline bool copy(State& next, int k, const Call& call) {
  if (!next.left.delay || next.copies == kCopies) return false;
  --next.left.delay;
  next.under_way[next.copies++] = {Byte(k), call};
  return true;
}

inline void arrive(const Moment& now, int w, int k) {
  const Call& call = now.state.workers[w].with[k].call;
  State next = now.state;
  apply_and_check(now, next, k, call, next.workers[w].with[k].reply);
  now.sink.step(next, "shard %d applies the call of W%d", k, w);
  State copied = now.state;
  if (copy(copied, k, call)) now.sink.step(copied, "a COPY of the call of W%d to shard %d is delayed", w, k);
}

inline void send_call(const Moment& now, State next, int w, int k, const Call& call) {
  Worker& me = next.workers[w];
  me.with[k].call = call;
  if (k == kHome && call.kind == kExchange && !call.seeding && now.model.rules.lowered_when_sent)
    WorkerSteps(next, w, now.model).lower();
  if (kShards > 1) {
    State copied = next;
    if (copy(copied, k, call)) {
      apply_and_check(now, copied, k, call, copied.workers[w].with[k].reply);
      now.sink.step(copied, "W%d calls shard %d, and a COPY is delayed", w, k);
    }
    apply_and_check(now, next, k, call, me.with[k].reply);
  }
  if (call.kind == kRejoin) return now.sink.step(next, "W%d rejoins shard %d", w, k);
  now.sink.step(next, "W%d sends an exchange to shard %d (%d moves)", w, k, call.count);
}

inline void send(const Moment& now, int w, int k) {
  Call call;
  if (!next_call(now, w, k, call)) return;
  send_call(now, now.state, w, k, call);
  if (call.kind != kExchange || !call.want || !now.state.left.pause) return;
  State paused = now.state;
  --paused.left.pause;
  call.want = 0;
  send_call(now, paused, w, k, call);
}

// With one shard, composing a call, applying it and hearing its answer are three steps. With several shards, composing
// and applying are one step (see README.md): in between, only the passing of a horizon would matter to the call, and no
// other step depends on a call that was not applied yet.
inline void converse(const Moment& now, int w, int k) {
  const Dialogue& d = now.state.workers[w].with[k];
  if (d.joined < kNoted || is_cut_from(now.state.workers[w], k)) return;
  if (d.reply.kind)
    hear(now, w, k);
  else if (d.call.kind)
    arrive(now, w, k);
  else
    send(now, w, k);
}

// Calls for which no worker waits any more.
inline void late_arrivals(const Moment& now) {
  for (int i = 0; i < now.state.copies; ++i) {
    State next = now.state;
    const Copy copy = now.state.under_way[i];
    for (int j = i; j + 1 < next.copies; ++j) next.under_way[j] = next.under_way[j + 1];
    next.under_way[--next.copies] = Copy{};
    const Shard before = next.shards[copy.shard];
    Reply nobody_reads;
    apply_and_check(now, next, copy.shard, copy.call, nobody_reads);
    if (memcmp(&next.shards[copy.shard], &before, sizeof before))
      now.sink.step(next, "a call of a member %d ARRIVES late at shard %d", copy.call.id, copy.shard);
  }
}
