// Real and supposed deaths: other workers take the leases of a silent worker.
#pragma once
#include "talking.h"

inline void kill(const Moment& now, int w) {
  State next = now.state;
  --next.left.kill;
  next.workers[w] = Worker{};
  now.sink.step(next, "KILL of W%d", w);
  if (now.state.workers[w].status == kClosedFinished) return;
  State sent = next;  // the calls of the killed worker may still arrive
  for (int k = 0; k < kShards; ++k) {
    Call call = now.state.workers[w].with[k].call;
    if (now.state.workers[w].with[k].reply.kind || is_cut_from(now.state.workers[w], k)) continue;
    if (!call.kind && (kShards == 1 || !next_call(now, w, k, call))) continue;
    if (sent.copies < kCopies) sent.under_way[sent.copies++] = {Byte(k), call};
  }
  if (sent.copies > next.copies) now.sink.step(sent, "KILL of W%d, whose calls are under way", w);
}

// The worker to which a registration belongs, and whether another worker can observe its heartbeat.
struct Judged {
  int owner = -1;  // -1: no live worker
  bool observed = false;
};

inline Judged judged(const State& state, int k, Byte id) {
  Judged found;
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& each = state.workers[w];
    if (each.status != kUp && each.status != kStopping) {
      if (each.status == kClosedFinished && each.with[k].id == id) found.owner = w;
      continue;
    }
    const Call& call = each.with[k].call;  // a worker that has rejoined is alive, even before the answer
    if (each.with[k].id == id || (call.kind == kRejoin && call.new_id == id))
      found.owner = w;
    else if (each.epoch == state.shards[k].epoch && each.with[kHome].joined && !is_cut_from(each, k))
      found.observed = true;
  }
  return found;
}

// Each shard has its own members and its own deaths.
inline void judge(const Moment& now, int k, int m) {
  const Member& who = now.state.shards[k].members[m];
  const Judged found = judged(now.state, k, who.id);
  if (!found.observed) return;
  const bool fences = now.model.rules.fence_before_drain;
  State next = now.state;
  if (who.fenced || (!fences && found.owner < 0)) {
    Shard& shard = changed(next, k);
    remove(shard, shard.members[m]);
    now.sink.step(next, "the leases of %d at shard %d go back", who.id, k);
  } else if (found.owner < 0) {
    fence(changed(next, k).members[m]);
    now.sink.step(next, "%d is fenced at shard %d", who.id, k);
  } else if (is_cut_from(now.state.workers[found.owner], k)) {
    fence(changed(next, k).members[m]);
    now.sink.step(next, "%d of W%d, which is cut off, is fenced at shard %d", who.id, found.owner, k);
  } else if (now.state.left.fence) {
    --next.left.fence;
    Shard& shard = changed(next, k);
    Member& victim = shard.members[m];
    if (fences)
      fence(victim);
    else
      shard.backlog |= victim.in_flight, victim.in_flight = 0;
    now.sink.step(next, "FREEZE: %d of W%d is declared dead at shard %d", who.id, found.owner, k);
  }
}

inline void reclaim(const Moment& now) {
  for (int k = 0; k < kShards; ++k)
    for (int m = 0; m < kMembers; ++m)
      if (now.state.shards[k].members[m].id) judge(now, k, m);
}

// In this step, a script releases leases that the worker does not know (yet). Rule 8 of rules.h forbids it.
inline void release_unknown(const Moment& now, int w) {
  for (int k = 0; k < kShards; ++k) {
    State next = now.state;
    const Byte id = next.workers[w].with[k].id;
    const Member* found = member(next.shards[k], id);
    if (!found || found->fenced) continue;
    const Set unknown = found->in_flight & ~WorkerSteps(next, w, now.model).held(k);
    if (!unknown) continue;
    Shard& shard = changed(next, k);
    Member& me = *member(shard, id);
    shard.backlog |= unknown, me.in_flight &= ~unknown;
    now.sink.step(next, "the leases that W%d does not know at shard %d are released", w, k);
  }
}
