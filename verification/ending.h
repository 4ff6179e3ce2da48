// How workers leave, and how a crawl of several shards ends.
#pragma once
#include "promises.h"

// Whether worker w can store nothing more at shard k. Then w leaves without a call, and others declare it dead at k.
inline bool is_stuck(const Moment& now, int w, int k) {
  const Worker& me = now.state.workers[w];
  const bool waits_for_home = is_cut_from(me, kHome) && me.with[k].count;
  return is_cut_from(me, k) ||
         (waits_for_home && !WorkerSteps(const_cast<State&>(now.state), w, now.model).sendable(k));
}

inline void leave(const Moment& now, int w) {
  const Worker& me = now.state.workers[w];
  if (me.running || me.buffer) return;
  for (int k = 0; k < kShards; ++k) {
    const Dialogue& d = me.with[k];
    if ((d.count || d.call.kind || d.rejoins) && !is_stuck(now, w, k)) return;
  }
  for (int k = kShards - 1; k >= 0; --k) {
    if (!me.with[k].joined) continue;
    State next = now.state;
    Dialogue& d = next.workers[w].with[k];
    if (member(next.shards[k], d.id) && next.shards[k].epoch == me.epoch && !is_stuck(now, w, k)) {
      Shard& shard = changed(next, k);
      remove(shard, *member(shard, d.id));
    }
    if (k == kHome) {
      next.workers[w] = Worker{};
      next.workers[w].status = me.cut ? kClosedCutOff : kLeft;
    } else {
      d = Dialogue{};
    }
    return now.sink.step(next, "W%d leaves shard %d", w, k);
  }
}

// A worker that knows that the run is finished leaves all shards, home last. The last worker to leave a shard
// unlinks its keys.
inline void leave_finished(const Moment& now, int w) {
  int k = kShards - 1;
  while (!now.state.workers[w].with[k].joined) --k;
  State next = now.state;
  Worker& me = next.workers[w];
  const Shard& there = now.state.shards[k];
  const bool is_of_run = there.epoch == me.epoch && there.run == me.run && there.phase != kCleared;
  const bool is_mine = is_of_run && !is_cut_from(me, k);
  bool clears = is_mine && (k != kHome || there.phase == kFinished);
  for (const Member& each : there.members) clears &= !each.id || each.id == me.with[k].id;
  if (is_mine && (clears || member(next.shards[k], me.with[k].id))) {
    Shard& shard = changed(next, k);
    if (Member* found = member(shard, me.with[k].id)) remove(shard, *found);
    if (clears) {
      shard.phase = kCleared;
      shard.seen = shard.backlog = 0;
      memset(shard.members, 0, sizeof shard.members);
    }
  }
  me.with[k] = Dialogue{};
  if (k == kHome) me = Worker{}, me.status = kClosedFinished;
  now.sink.step(next, clears ? "W%d, the last, clears shard %d" : "W%d has finished and leaves shard %d", w, k);
}

// The double collect: a worker asks each other shard whether it is empty, then home, then the other shards again. Then
// the worker finishes the run at home if home has not changed since its answer. Each question is an exchange. So if a
// shard was rolled back to a state before the previous question, it refuses the next question, because the exchange's
// number does not fit. To compare versions is not enough: after a roll-back, a shard may reach the same version again.
class Collect {
 public:
  Collect(const Moment& now, int w) : now_(now), w_(w), next_(now.state), me_(next_.workers[w]) {}

  void step() {
    if (!may_ask()) {
      if (me_.stage) start_again("W%d has work, and stops asking the shards");
      return;
    }
    const bool again = me_.stage >= kShards;
    if (me_.stage == 2 * kShards - 1 || (again && !now_.model.rules.collect_twice)) return finish();
    ask(me_.stage < kShards - 1 ? me_.stage + 1 : me_.stage == kShards - 1 ? kHome : me_.stage - kShards + 1, again);
  }

 private:
  bool may_ask() {
    for (const Dialogue& d : me_.with)
      if (d.joined < kNoted) return false;
    const WorkerSteps steps(next_, w_, now_.model);
    return steps.quiet() && !steps.level() && !me_.level;
  }

  void start_again(const char* what) {
    me_.forget_collect();
    now_.sink.step(next_, what, w_);
  }

  // Make an exchange with shard k; return false if the shard answers RESYNC, as it may answer any call.
  bool exchanges(int k) {
    Dialogue& d = me_.with[k];
    Member* const me = member(next_.shards[k], d.id);
    const Rules& rules = now_.model.rules;
    if (!rules.ask_by_exchange) return true;
    if (!me || me->fenced || (rules.held && me->in_flight)) return false;
    if (rules.next_number_only ? d.seq != me->last_seq + 1 : d.seq <= me->last_seq) return false;
    me->last_seq = d.seq++, me->granted = 0, me->reply = kOk;
    return true;
  }

  void ask(int k, bool again) {
    if (is_cut_from(me_, k)) return;
    const Shard& shard = now_.state.shards[k];
    if (shard.epoch != me_.epoch) {
      WorkerSteps(next_, w_, now_.model).close(kClosedLost);
      return now_.sink.step(next_, "W%d finds shard %d gone", w_, k);
    }
    if (!exchanges(k)) {
      if (me_.stage) start_again("W%d is out of step, and asks no further");
      return;
    }
    const bool empty = shard.run == me_.run && is_empty(shard) && (k != kHome || (!seeds(shard) && shard.phase == kOpen));
    if (again) {
      if (!empty || shard.version != me_.versions[k]) return start_again("W%d finds a change");
    } else {
      if (!empty && !me_.stage) return;
      if (!empty) return start_again("W%d finds work, and asks no further");
      me_.versions[k] = shard.version;
    }
    ++me_.stage;
    now_.sink.step(next_, again ? "W%d finds shard %d unchanged" : "W%d finds shard %d empty", w_, k);
  }

  void finish() {
    if (is_cut_from(me_, kHome)) return;
    const Shard& home = now_.state.shards[kHome];
    const bool same = home.version == me_.versions[kHome] || !now_.model.rules.finish_if_unchanged;
    if (home.epoch != me_.epoch || home.run != me_.run || home.phase != kOpen || !same || !is_empty(home) || seeds(home))
      return start_again("W%d may not finish");
    if (!exchanges(kHome)) return start_again("W%d is out of step, and does not finish");
    changed(next_, kHome).phase = kFinished;
    me_.forget_collect();
    check_end(now_, next_);
    now_.sink.step(next_, "W%d marks the run finished", w_);
  }

  const Moment& now_;
  const int w_;
  State next_;
  Worker& me_;
};
