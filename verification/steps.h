// Everything that can happen next in a state: steps of workers, of Redis and of the network, and faults.
#pragma once
#include "worker.h"

struct Sink {
  virtual void step(State& next, const char* what, int a = 0, int b = 0, int c = 0) = 0;
  virtual void violation(const State& next, const char* what) = 0;
  virtual ~Sink() = default;
};

class Steps {
 public:
  Steps(const Model& model, const Budget& budget) : model_(model), budget_(budget) {}

  State initial() const {
    State state = {};
    state.left = budget_;
    return state;
  }

  void all(const State& state, Sink& sink) const {
    for (int w = 0; w < kWorkers; ++w) {
      switch (state.workers[w].status) {
        case kDown: case kLeft: join_home(state, w, sink); break;
        case kUp: case kStopping: work(state, w, sink); break;
        case kClosedFinished: leave_finished(state, w, sink); break;
        default: break;
      }
    }
    reclaim(state, sink);
    network(state, sink);
    redis(state, sink);
  }

  // Nobody can do anything: what is wrong with that? Null: nothing.
  const char* wrong_end(const State& state) const {
    for (const Worker& each : state.workers)
      if (each.status != kClosedFinished && each.status != kClosedLost)
        return "nothing can happen any more, and the crawl has not ended";
    const Shard& home = state.shards[kHome];
    const bool is_over = home.epoch == state.epoch && home.run == state.run && home.phase != kOpen;
    return is_over && missing(state) && !state.told ? "over, with a loss" : nullptr;
  }

 private:
  // -- A change of a shard, which a roll-back may undo.

  static Shard& changed(State& state, int k) {
    if (state.left.roll) {
      History& past = state.history[k];
      past.shards[1] = past.shards[0];
      past.shards[0] = state.shards[k];
      if (past.count < kSnapshots) ++past.count;
    }
    if (kShards > 1) ++state.shards[k].version;
    return state.shards[k];
  }

  static void apply(State& state, int k, const Call& call, Reply& reply, const Model& model) {
    Shard after = state.shards[k];
    reply = call.kind == kExchange ? exchange(after, call, k == kHome, model.rules)
                                   : rejoin(after, call, k == kHome);
    if (memcmp(&after, &state.shards[k], sizeof after)) {
      Shard& shard = changed(state, k);
      after.version = shard.version;
      shard = after;
    }
  }

  // -- Ids and what still names them.

  template <class F>
  static void each_id(State& state, int k, F visit) {
    for (Worker& w : state.workers) {
      visit(w.with[k].id), visit(w.with[k].call.id), visit(w.with[k].call.new_id);
      if (k == kHome)
        for (Dialogue& d : w.with) visit(d.base), visit(d.call.base);
    }
    auto shard_ids = [&](Shard& shard, bool is_k) {
      for (Member& each : shard.members) {
        if (is_k) visit(each.id);
        if (k == kHome) visit(each.base);
      }
    };
    for (int s = 0; s < kShards; ++s) {
      shard_ids(state.shards[s], s == k);
      for (Shard& each : state.history[s].shards) shard_ids(each, s == k);
    }
    for (int i = 0; i < state.copies; ++i) {
      Copy& copy = state.under_way[i];
      if (copy.shard == k) visit(copy.call.id), visit(copy.call.new_id);
      if (k == kHome) visit(copy.call.base);
    }
  }

  static Byte fresh_id(const State& state, int k) {
    unsigned used = 1;
    each_id(const_cast<State&>(state), k, [&](Byte id) { used |= 1u << id; });
    Byte id = 1;
    while (used >> id & 1) ++id;
    if (id > 30) throw "too many ids";
    return id;
  }

  // -- Joining.

  void join_home(const State& state, int w, Sink& sink) const {
    State next = state;
    Worker& me = next.workers[w];
    const Byte id = fresh_id(state, kHome);
    const Shard& now = state.shards[kHome];
    memset(&me, 0, sizeof me);
    if (now.epoch && now.phase != kOpen) {
      if (!state.left.again) {
        me.status = kClosedFinished;
        return sink.step(next, "W%d starts: the run is over", w);
      }
      --next.left.again;
    }
    Shard& home = changed(next, kHome);
    if (!home.epoch) {
      const Byte version = home.version;
      home = Shard{};
      home.version = version;
      home.epoch = newest_epoch(state) + 1;
      begin_run(home, 1);
      next.epoch = home.epoch, next.run = 0;  // all that was before is lost, and said to be
    } else if (home.phase != kOpen) {
      begin_run(home, home.run + 1);
    }
    if (home.run > next.run) {
      next.run = home.run, next.promised = 0;
      memset(next.processed, 0, sizeof next.processed);
    }
    registered(home, id, id, 1);
    me.status = kUp, me.epoch = home.epoch, me.run = home.run, me.level = 1;
    me.with[kHome].joined = 2, me.with[kHome].id = me.with[kHome].base = id, me.with[kHome].seq = 1;
    sink.step(next, "W%d joins run %d as %d", w, home.run, id);
  }

  static Byte newest_epoch(const State& state) {
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

  void join_shard(const State& state, int w, int k, Sink& sink) const {
    State next = state;
    Worker& me = next.workers[w];
    Dialogue& d = me.with[k];
    const Shard& home = state.shards[kHome];
    if (d.joined) {  // the shard is there: now home notes it
      if (home.epoch != me.epoch) {
        WorkerSteps(next, w, model_).close(kClosedLost);
        return sink.step(next, "W%d finds home gone", w);
      }
      d.joined = 2;
      if (!(home.created & 1 << k)) changed(next, kHome).created |= 1 << k;
      return sink.step(next, "W%d: home notes shard %d", w, k);
    }
    const Shard& now = state.shards[k];
    const bool noted = home.epoch == me.epoch && home.created & 1 << k;
    if (now.epoch != me.epoch && noted) {
      WorkerSteps(next, w, model_).close(kClosedLost);
      return sink.step(next, "W%d finds shard %d gone", w, k);
    }
    if (now.epoch == me.epoch && now.run > me.run) {
      WorkerSteps(next, w, model_).close(kClosedFinished);
      return sink.step(next, "W%d finds shard %d in a later run", w, k);
    }
    Shard& shard = changed(next, k);
    if (shard.epoch != me.epoch) {
      const Byte version = shard.version;
      shard = Shard{};
      shard.version = version, shard.epoch = me.epoch;
      begin_run(shard, me.run);
    } else if (shard.run < me.run) {
      begin_run(shard, me.run);
    }
    d.joined = 1, d.id = fresh_id(state, k), d.base = me.with[kHome].id, d.seq = 1;
    registered(shard, d.id, d.base, 0);
    sink.step(next, "W%d joins shard %d as %d", w, k, d.id);
  }

  // -- A worker that is up, or stops.

  void work(const State& state, int w, Sink& sink) const {
    const Worker& me = state.workers[w];
    for (int k = 1; k < kShards; ++k)
      if (me.with[k].joined < 2) {
        join_shard(state, w, k, sink);
        break;
      }
    const auto act = [&](auto change, const char* what, int b) {
      State next = state;
      WorkerSteps steps(next, w, model_);
      change(steps);
      sink.step(next, what, w, b);
    };
    for (int r = 0; r < model_.site.count; ++r) {
      const Set one = only(r);
      const bool from_start = me.status == kUp && model_.site.start & one && !me.start_over;
      const bool later = me.status == kUp && w == 0 && me.start_over && model_.site.extra & one;
      const bool first_left = !(model_.site.start & ~me.yielded & (one - 1));
      if (!(me.yielded & one) && ((from_start && first_left) || later))
        act([&](WorkerSteps& s) { s.yield_parentless(r); }, "W%d yields %d", r);
      if (me.status == kUp && me.buffer & one && first(me.buffer) == r && !me.running)
        act([&](WorkerSteps& s) { s.run(r); }, "W%d runs %d", r);
      if (me.running & one) {
        finish_request(state, w, r, sink);
        if (me.status == kStopping) act([&](WorkerSteps& s) { s.give_up(r); }, "W%d gives up %d", r);
      }
    }
    for (int k = 0; k < kShards; ++k) converse(state, w, k, sink);
    if (me.status == kUp && state.left.term) {
      State next = state;
      --next.left.term;
      WorkerSteps(next, w, model_).stop();
      sink.step(next, "SIGTERM to W%d", w);
    }
    if (me.status == kStopping) leave(state, w, sink);
    if (kShards > 1 && me.status == kUp) collect(state, w, sink);
    if (!model_.rules.release_by_rejoin_only) reconcile(state, w, sink);
    if (state.left.kill) kill(state, w, sink);
  }

  void finish_request(const State& state, int w, int r, Sink& sink) const {
    State next = state;
    WorkerSteps(next, w, model_).done(r);
    const Budget& left = state.left;
    const int faults = (budget_.kill - left.kill) + (budget_.fence - left.fence) + (budget_.roll - left.roll) +
                       (budget_.flush - left.flush) + (budget_.term - left.term);
    if (next.processed[r] > 1 + faults) sink.violation(next, "a request is processed more than 1 + faults times");
    sink.step(next, "W%d is done with %d", w, r);
  }

  // With one shard, to compose a call, to apply it and to answer are three steps. With more, the first two are one:
  // until it is applied, a call depends on nobody, and nobody on it (but the horizon: see README.md).
  void converse(const State& state, int w, int k, Sink& sink) const {
    const Worker& me = state.workers[w];
    const Dialogue& d = me.with[k];
    if (d.joined < 2) return;
    if (d.reply.kind) {
      State next = state;
      WorkerSteps(next, w, model_).receive(k);
      sink.step(next, "W%d hears from shard %d", w, k);
      if (state.left.lose) {
        State lost = state;
        --lost.left.lose;
        lost.workers[w].with[k].reply = {};
        sink.step(lost, "the reply of shard %d to W%d is LOST", k, w);
      }
      return;
    }
    if (d.call.kind) {
      State next = state;
      apply_and_check(next, k, d.call, next.workers[w].with[k].reply, sink);
      sink.step(next, "shard %d applies the call of W%d", k, w);
      if (state.left.delay && state.copies < kCopies) {
        State copied = state;
        --copied.left.delay;
        copied.under_way[copied.copies++] = {Byte(k), d.call};
        sink.step(copied, "a COPY of the call of W%d to shard %d is delayed", w, k);
      }
      return;
    }
    State next = state;
    Call call;
    if (!next_call(state, w, k, call)) return;
    next.workers[w].with[k].call = call;
    if (k == kHome && call.kind == kExchange && !call.seeding && model_.rules.lowered_when_sent)
      next.workers[w].level = 0;
    if (k == kHome && call.kind == kExchange)
      for (Dialogue& other : next.workers[w].with)
        if (other.rejoins == kAskHomeFirst) other.rejoins = kHomeAsked;
    if (kShards > 1) {
      if (state.left.delay && state.copies < kCopies) {
        State copied = next;
        --copied.left.delay;
        copied.under_way[copied.copies++] = {Byte(k), call};
        apply_and_check(copied, k, call, copied.workers[w].with[k].reply, sink);
        sink.step(copied, "W%d calls shard %d, and a COPY is delayed", w, k);
      }
      apply_and_check(next, k, call, next.workers[w].with[k].reply, sink);
    }
    if (call.kind == kRejoin) return sink.step(next, "W%d rejoins shard %d", w, k);
    sink.step(next, "W%d sends an exchange to shard %d (%d moves)", w, k, call.count);
  }

  // What a worker has to say to a shard; false: nothing.
  bool next_call(const State& state, int w, int k, Call& call) const {
    const Worker& me = state.workers[w];
    const Dialogue& d = me.with[k];
    if (d.joined < 2 || d.call.kind) return false;
    State copy = state;
    WorkerSteps steps(copy, w, model_);
    if (d.rejoins) {
      if (k != kHome && (me.with[kHome].rejoins || d.rejoins != kMustRejoin)) return false;  // home first
      call = steps.composed_rejoin(k, fresh_id(state, k));
      return true;
    }
    call = steps.composed_exchange(k);
    if (k == kHome)
      for (const Dialogue& other : me.with)
        if (other.rejoins == kAskHomeFirst) return true;
    return matters(state, me, k, call);
  }

  // An exchange that changes nothing but its number is left out.
  bool matters(const State& state, const Worker& me, int k, const Call& call) const {
    if (call.count || call.ripe) return true;
    if (k == kHome && call.seeding != me.level) return true;
    Shard after = state.shards[k];
    const Reply reply = exchange(after, call, k == kHome, model_.rules);
    if (reply.kind == kNotAppliedFinished && k == kHome) return me.start_over && !me.parentless;
    return reply.kind != kOk || reply.leases;
  }

  void apply_and_check(State& next, int k, const Call& call, Reply& reply, Sink& sink) const {
    const bool was_open = next.shards[kHome].phase == kOpen;
    apply(next, k, call, reply, model_);
    if (k == kHome && was_open && next.shards[kHome].phase == kFinished) check_end(next, sink);
  }

  void check_end(const State& next, Sink& sink) const {
    const Shard& home = next.shards[kHome];
    if (home.epoch != next.epoch || home.run != next.run) return;
    const Set lost = missing(next) & ~coming(next);
    if (lost) sink.violation(next, "finished over a loss");
  }

  Set missing(const State& state) const {
    Set found = Set(((1u << model_.site.count) - 1) & ~(model_.site.extra & ~state.promised));
    for (int r = 0; r < model_.site.count; ++r)
      if (state.processed[r]) found &= ~only(r);
    return found;
  }

  // What live workers have yet to put, or would put again, with all that it leads to: it opens the run again.
  Set coming(const State& state) const {
    Set found = 0;
    for (const Worker& each : state.workers) {
      if ((each.status != kUp && each.status != kStopping) || each.epoch != state.epoch || each.run != state.run)
        continue;
      if (each.status == kUp && !each.start_over) found |= model_.site.start;
      for (const Dialogue& d : each.with) {
        found |= d.log;
        for (int i = 0; i < d.count; ++i)
          if (kind_of(d.outbox[i]) == kPut) found |= only(request_of(d.outbox[i]));
      }
    }
    for (bool more = true; more;) {
      more = false;
      for (int r = 0; r < model_.site.count; ++r) {
        if (!(found & only(r)) || state.processed[r]) continue;
        more |= model_.site.children[r] & ~found;
        found |= model_.site.children[r];
      }
    }
    return found;
  }

  void leave(const State& state, int w, Sink& sink) const {
    const Worker& me = state.workers[w];
    if (me.running || me.buffer) return;
    for (const Dialogue& d : me.with)
      if (d.count || d.call.kind || d.rejoins) return;
    for (int k = kShards - 1; k >= 0; --k) {
      if (!me.with[k].joined) continue;
      State next = state;
      Dialogue& d = next.workers[w].with[k];
      if (Member* member = ::member(next.shards[k], d.id); member && next.shards[k].epoch == me.epoch) {
        Shard& shard = changed(next, k);
        remove(shard, *::member(shard, d.id));
      }
      if (k == kHome) {
        next.workers[w] = Worker{};
        next.workers[w].status = kLeft;
      } else {
        d = Dialogue{};
      }
      return sink.step(next, "W%d leaves shard %d", w, k);
    }
  }

  // The last worker of a finished run to leave unlinks its keys: first the shards, then home.
  void leave_finished(const State& state, int w, Sink& sink) const {
    const Worker& me = state.workers[w];
    if (!me.with[kHome].joined) return;
    const Shard& home = state.shards[kHome];
    const bool there = home.epoch == me.epoch && home.run == me.run && home.phase == kFinished;
    bool last = there;
    for (const Member& each : home.members)
      if (each.id && each.id != me.with[kHome].id) last = false;
    for (int k = kShards - 1; k >= 0; --k) {
      if (!me.with[k].joined) continue;
      State next = state;
      Dialogue& d = next.workers[w].with[k];
      const Shard& now = state.shards[k];
      const bool mine = now.epoch == me.epoch && now.run == me.run;
      Member* member = ::member(next.shards[k], d.id);
      if (mine && (member || last)) {
        Shard& shard = changed(next, k);
        if (Member* again = ::member(shard, d.id)) remove(shard, *again);
        if (last) {
          shard.seen = shard.backlog = 0;
          memset(shard.members, 0, sizeof shard.members);
          if (k == kHome) shard.phase = kCleared;
        }
      }
      d = Dialogue{};
      if (k == kHome) {
        next.workers[w] = Worker{};
        next.workers[w].status = kClosedFinished;
      }
      return sink.step(next, last ? "W%d, the last, clears shard %d" : "W%d has finished and leaves shard %d", w, k);
    }
  }

  // -- The end of a crawl of several shards.

  void collect(const State& state, int w, Sink& sink) const {
    State next = state;
    Worker& me = next.workers[w];
    WorkerSteps steps(next, w, model_);
    for (const Dialogue& d : me.with)
      if (d.joined < 2) return;
    if (!me.stage && (!steps.quiet() || steps.level() || me.level)) return;
    const auto start_again = [&](const char* what) {
      me.stage = 0;
      memset(me.versions, 0, sizeof me.versions);
      sink.step(next, what, w);
    };
    const int asked = me.stage < kShards - 1 ? me.stage + 1 : me.stage == kShards - 1 ? kHome : me.stage - kShards + 1;
    const bool again = me.stage >= kShards;
    const bool to_finish = me.stage == 2 * kShards - 1 || (again && !model_.rules.collect_twice);
    if (to_finish) {
      const Shard& now = state.shards[kHome];
      const bool same = now.version == me.versions[kHome] || !model_.rules.finish_if_unchanged;
      if (now.epoch != me.epoch || now.run != me.run || now.phase != kOpen || !same || !is_empty(now) || seeds(now))
        return start_again("W%d may not finish");
      changed(next, kHome).phase = kFinished;
      me.stage = 0;
      memset(me.versions, 0, sizeof me.versions);
      check_end(next, sink);
      return sink.step(next, "W%d marks the run finished", w);
    }
    const Shard& now = state.shards[asked];
    if (now.epoch != me.epoch) {
      steps.close(kClosedLost);
      return sink.step(next, "W%d finds shard %d gone", w, asked);
    }
    const bool empty = now.run == me.run && is_empty(now) && (asked != kHome || (!seeds(now) && now.phase == kOpen));
    if (!again) {
      if (!empty) {
        if (me.stage) start_again("W%d finds work, and asks no further");
        return;
      }
      me.versions[asked] = now.version;
    } else if (!empty || now.version != me.versions[asked]) {
      return start_again("W%d finds a change");
    }
    ++me.stage;
    sink.step(next, again ? "W%d finds shard %d unchanged" : "W%d finds shard %d empty", w, asked);
  }

  // -- Death.

  void kill(const State& state, int w, Sink& sink) const {
    State next = state;
    --next.left.kill;
    next.workers[w] = Worker{};
    sink.step(next, "KILL of W%d", w);
    State sent = next;  // its calls may still arrive
    for (int k = 0; k < kShards; ++k) {
      Call call = state.workers[w].with[k].call;
      if (state.workers[w].with[k].reply.kind) continue;
      if (!call.kind && (kShards == 1 || !next_call(state, w, k, call))) continue;
      if (sent.copies < kCopies) sent.under_way[sent.copies++] = {Byte(k), call};
    }
    if (sent.copies > next.copies) sink.step(sent, "KILL of W%d, whose calls are under way", w);
  }

  void reclaim(const State& state, Sink& sink) const {
    for (int k = 0; k < kShards; ++k)
      for (int m = 0; m < kMembers; ++m) {
        const Member& who = state.shards[k].members[m];
        if (!who.id) continue;
        int owner = -1;
        bool observed = false;
        for (int w = 0; w < kWorkers; ++w) {
          const Worker& each = state.workers[w];
          if (each.status != kUp && each.status != kStopping) {
            if (each.status == kClosedFinished && each.with[k].id == who.id) owner = w;
            continue;
          }
          const Call& call = each.with[k].call;  // who has rejoined lives, though it has not heard yet
          if (each.with[k].id == who.id || (call.kind == kRejoin && call.new_id == who.id)) owner = w;
          else if (each.epoch == state.shards[k].epoch && each.with[kHome].joined) observed = true;
        }
        if (!observed) continue;
        const Member* at_home = nullptr;
        for (const Member& each : state.shards[kHome].members)
          if (each.id && each.id == who.base) at_home = &each;
        const bool dead_at_home = k != kHome && (!at_home || at_home->fenced);
        if (who.fenced || (!model_.rules.fence_before_drain && owner < 0)) {
          State next = state;
          Shard& shard = changed(next, k);
          remove(shard, shard.members[m]);
          sink.step(next, "the leases of %d at shard %d go back", who.id, k);
        } else if (k == kHome ? owner < 0 : dead_at_home) {
          State next = state;
          fence(changed(next, k).members[m]);
          sink.step(next, "%d is fenced at shard %d", who.id, k);
        } else if (k == kHome && owner >= 0 && state.left.fence) {
          State next = state;
          --next.left.fence;
          Shard& shard = changed(next, k);
          if (model_.rules.fence_before_drain)
            fence(shard.members[m]);
          else
            shard.backlog |= shard.members[m].in_flight, shard.members[m].in_flight = 0;
          sink.step(next, "FREEZE: %d of W%d is declared dead at shard %d", who.id, owner, k);
        }
      }
  }

  // What rule 8 forbids: a script that releases leases which the worker does not know (yet).
  void reconcile(const State& state, int w, Sink& sink) const {
    for (int k = 0; k < kShards; ++k) {
      const Member* found = member(const_cast<Shard&>(state.shards[k]), state.workers[w].with[k].id);
      if (!found || found->fenced) continue;
      State next = state;
      const Set unknown = found->in_flight & ~WorkerSteps(next, w, model_).held(k);
      if (!unknown) continue;
      Shard& shard = changed(next, k);
      Member& me = *member(shard, found->id);
      shard.backlog |= unknown, me.in_flight &= ~unknown;
      sink.step(next, "what W%d does not know at shard %d is released", w, k);
    }
  }

  // -- The network and Redis.

  void network(const State& state, Sink& sink) const {
    for (int i = 0; i < state.copies; ++i) {
      State next = state;
      const Copy copy = state.under_way[i];
      for (int j = i; j + 1 < next.copies; ++j) next.under_way[j] = next.under_way[j + 1];
      next.under_way[--next.copies] = Copy{};
      State dropped = next;
      Reply nobody_reads;
      apply_and_check(next, copy.shard, copy.call, nobody_reads, sink);
      if (memcmp(&next.shards[copy.shard], &dropped.shards[copy.shard], sizeof(Shard)))
        sink.step(next, "a call of a member %d ARRIVES late at shard %d", copy.call.id, copy.shard);
    }
  }

  void redis(const State& state, Sink& sink) const {
    for (int k = 0; k < kShards; ++k) {
      bool confirmed = false;
      for (const Worker& each : state.workers) confirmed |= each.with[k].log & ~each.with[k].ripe;
      if (state.history[k].count || confirmed) {
        State next = state;
        next.history[k] = History{};
        for (int w = 0; w < kWorkers; ++w) WorkerSteps(next, w, model_).ripen(k);
        sink.step(next, "a horizon passes at shard %d", k);
      }
      if (state.left.roll)
        for (int back = 0; back < state.history[k].count; ++back) {
          State next = state;
          --next.left.roll;
          next.shards[k] = state.history[k].shards[back];
          History rest = {};
          if (next.left.roll)
            for (int j = back + 1; j < state.history[k].count; ++j) rest.shards[rest.count++] = state.history[k].shards[j];
          next.history[k] = rest;
          if (!next.left.roll)
            for (History& each : next.history) each = History{};
          sink.step(next, "shard %d is ROLLED BACK by %d", k, back + 1);
        }
      if (state.left.flush && state.shards[k].epoch) {
        State next = state;
        --next.left.flush;
        next.shards[k] = Shard{};
        next.history[k] = History{};
        sink.step(next, "shard %d is FLUSHED", k);
      }
    }
  }

  friend class Canonical;
  const Model& model_;
  Budget budget_;
};
