// A worker's side of the protocol (frontier/worker/protocol.py): changes by pages and by time, and its calls.
#pragma once
#include "frontier.h"

struct Model {
  const Site& site;
  Rules rules;
  int capacity = 1;  // maximum number of requests that a worker buffers and runs
  // A put without a parent is promised when it is retired, not when it is confirmed. In between, the put is lost if
  // Redis is rolled back and the worker is killed.
  bool promised_when_retired = false;

  int shard_of(int request) const { return site.shard[request] % kShards; }
  bool parentless(int request) const { return (site.start | site.extra) & only(request); }
  Set in_shard(int k) const {
    Set found = 0;
    for (int r = 0; r < site.count; ++r)
      if (shard_of(r) == k) found |= only(r);
    return found;
  }
};

class WorkerSteps {
 public:
  WorkerSteps(State& state, int index, const Model& model)
      : state_(state), me_(state.workers[index]), model_(model) {}

  // start(), or a timer of the first worker, yields a request.
  void yield_parentless(int request) {
    me_.yielded |= only(request);
    if (!(model_.site.start & ~me_.yielded)) me_.start_over = 1;
    put(request);
  }

  void run(int request) {
    me_.buffer &= ~only(request);
    me_.running |= only(request);
    me_.owned |= only(request);
  }

  // The callback has ended: put its children first, then ack.
  void done(int request) {
    const Set one = only(request);
    const int shard = model_.shard_of(request);
    if (is_current() && state_.processed[request] < 15) ++state_.processed[request];
    Set elsewhere = 0;
    for (int child = 0; child < model_.site.count; ++child) {
      if (!(model_.site.children[request] & only(child))) continue;
      const bool is_new = put(child), waits = is_new || (model_.rules.defer_for_known && may_be_lost(child));
      if (waits && model_.shard_of(child) != shard) elsewhere |= only(child);
    }
    const bool owned = me_.owned & one;
    me_.running &= ~one;
    me_.owned &= ~one;
    if (!owned) return;
    if (me_.gave_up && elsewhere & unreachable())
      append(shard, move(kRelease, request));
    else if (elsewhere && model_.rules.defer)
      wait(request, elsewhere);
    else
      append(shard, move(kAck, request));
  }

  void give_up(int request) {
    const Set one = only(request);
    if (me_.owned & one) append(model_.shard_of(request), move(kRelease, request));
    me_.running &= ~one;
    me_.owned &= ~one;
  }

  // SIGTERM: give back unstarted leases and pages that wait for children in other shards.
  void stop() {
    me_.status = kStopping;
    release_buffer();
    for (int i = 0; i < me_.waits; ++i)
      append(model_.shard_of(me_.waiting[i].parent), move(kRelease, me_.waiting[i].parent));
    me_.waits = 0;
    memset(me_.waiting, 0, sizeof me_.waiting);
  }

  bool takes_leases() const {
    return me_.status == kUp && !(me_.gave_up && model_.rules.takes_none_cut_off);
  }

  // Give up on the unreachable shard, which other workers reach (deferred_ends.py, give_up_on; worker.py, room_of).
  void give_up_on_shard() {
    me_.gave_up = 1;
    if (!takes_leases()) release_buffer();
    keep_waits([&](const Wait& one) {
      if (!(one.children & unreachable())) return true;
      append(model_.shard_of(one.parent), move(kRelease, one.parent));
      return false;
    });
  }

  // Whether the worker keeps the run open, or has requests that only it can store (reach.py, _keeps_waiting).
  bool keeps_waiting() const {
    for (int k = 0; k < kShards; ++k)
      if (outbox_has_parentless(k)) return true;
    return me_.parentless;
  }

  // Whether the worker's level keeps the run open. While home does not answer this worker, other workers may declare it
  // dead there, and finish the run.
  bool is_raised() const {
    return me_.raised && !(model_.rules.raised_if_answers && is_cut_from(me_, kHome));
  }

  int sendable(int k) const {
    const Dialogue& d = me_.with[k];
    if (k == kHome || !model_.rules.raise_first || is_raised()) return d.count;
    for (int i = 0; i < d.count; ++i)
      if (kind_of(d.outbox[i]) == kPut && model_.parentless(request_of(d.outbox[i]))) return i;
    return d.count;
  }

  Set held(int k) const {
    const Dialogue& d = me_.with[k];
    Set found = (me_.buffer | (me_.running & me_.owned)) & model_.in_shard(k);
    for (int i = 0; i < me_.waits; ++i)
      if (model_.shard_of(me_.waiting[i].parent) == k) found |= only(me_.waiting[i].parent);
    for (int i = 0; i < d.count; ++i)
      if (kind_of(d.outbox[i]) != kPut) found |= only(request_of(d.outbox[i]));
    return found;
  }

  Byte level() const {
    if (me_.status == kStopping && !model_.rules.seeding_stays) return 0;
    if (!me_.start_over || me_.parentless) return 1;
    for (int k = 1; k < kShards; ++k)
      if (outbox_has_parentless(k)) return 1;
    return 0;
  }

  Call composed_exchange(int k) const {
    const Dialogue& d = me_.with[k];
    Call call = {};
    call.kind = kExchange;
    call.id = d.id, call.epoch = me_.epoch, call.run = me_.run, call.seq = d.seq;
    const int busy = size(me_.buffer | me_.running);
    call.want = takes_leases() && busy < model_.capacity ? model_.capacity - busy : 0;
    call.held = size(held(k));
    call.count = sendable(k);
    memcpy(call.moves, d.outbox, call.count);
    call.ripe = d.ripe;
    if (k == kHome) call.seeding = level();
    return call;
  }

  Call composed_rejoin(int k, Byte new_id) const {
    const Dialogue& d = me_.with[k];
    Call call = {};
    call.kind = kRejoin;
    call.id = d.id, call.epoch = me_.epoch, call.run = me_.run;
    call.new_id = new_id;
    call.held_set = held(k);
    if (k == kHome) {
      call.parentless = !me_.start_over || me_.parentless || outbox_has_parentless(k) ? kWaitingPuts : kNone;
      for (int r = 0; !call.parentless && r < model_.site.count; ++r)
        if (d.log & only(r) && model_.parentless(r)) call.parentless = kLoggedPuts;
    }
    return call;
  }

  // A horizon has passed since this shard's last confirmation.
  void ripen(int k) {
    Dialogue& d = me_.with[k];
    d.ripe = d.log;
    if (!model_.rules.retire_by_exchange) retire(k, d.ripe);
  }

  void close(Status how) {
    if (how == kClosedLost && me_.epoch == state_.epoch) state_.told = 1;
    Worker closed = {};
    closed.status = how;
    if (how == kClosedFinished) {  // the worker still has to leave
      closed.epoch = me_.epoch, closed.run = me_.run, closed.cut = me_.cut;
      for (int k = 0; k < kShards; ++k)
        closed.with[k].joined = me_.with[k].joined, closed.with[k].id = me_.with[k].id;
    }
    me_ = closed;
  }

  // Home has confirmed level 1 and is open.
  void raise() {
    if (kShards == 1 || me_.raised) return;
    me_.raised = kRaised;
    me_.with[kHome].log |= kRaise;
  }

  void lower() {
    me_.level = 0, me_.raised = kNotRaised;
    me_.with[kHome].log &= ~kRaise, me_.with[kHome].ripe &= ~kRaise;
  }

  bool quiet() const {
    if (me_.buffer || me_.running || me_.waits) return false;
    for (const Dialogue& d : me_.with)
      if (d.count || d.call.kind || d.rejoins) return false;
    return true;
  }

  // The requests in the unreachable shard.
  Set unreachable() const { return me_.cut ? model_.in_shard(me_.cut - 1) : 0; }

 protected:
  // A frozen worker may still be in a finished run or a lost frontier.
  bool is_current() const {
    return me_.epoch == state_.epoch && (me_.run == state_.run || !model_.rules.run_in_every_call);
  }

  bool may_be_lost(int request) const {
    const Dialogue& d = me_.with[model_.shard_of(request)];
    return (puts_in(d) | d.log) & only(request);
  }

  // Put a request. If this worker has put it before, drop it and return false.
  bool put(int request) {
    if (me_.known & only(request)) return false;
    me_.known |= only(request);
    const int k = model_.shard_of(request);
    if (k != kHome && model_.parentless(request)) me_.parentless |= only(request);
    append(k, move(kPut, request));
    return true;
  }

  void release_buffer() {
    for (int r = 0; r < model_.site.count; ++r)
      if (me_.buffer & only(r)) append(model_.shard_of(r), move(kRelease, r));
    me_.buffer = 0;
  }

  void append(int k, Byte what) {
    Dialogue& d = me_.with[k];
    if (d.count == kMoves) throw "an outbox is full: raise kMoves";
    d.outbox[d.count++] = what;
  }

  void wait(int parent, Set children) {
    if (me_.waits == kWaiting) throw "too many acks wait: raise kWaiting";
    me_.waiting[me_.waits++] = {Byte(parent), children};
  }

  bool outbox_has_parentless(int k) const {
    return puts_in(me_.with[k]) & (model_.site.start | model_.site.extra);
  }

  void promise(Set puts) {
    if (is_current()) state_.promised |= puts & model_.site.extra;
  }

  // Retire puts of shard k: they cannot be lost any more.
  void retire(int k, Set puts) {
    Dialogue& d = me_.with[k];
    if (k == kHome && d.log & puts & kRaise) me_.raised = kRaiseRetired;
    d.log &= ~puts;
    d.ripe &= ~puts;
    promise(puts & ~me_.parentless);
    me_.settled |= puts & me_.parentless;
    if (me_.raised == kRaiseRetired || !model_.rules.raise_retires) {
      promise(me_.settled);
      me_.parentless &= ~me_.settled;
      me_.settled = 0;
    }
    end_deferred(puts);
  }

  template <class F>
  void keep_waits(F keeps) {
    int kept = 0;
    for (int i = 0; i < me_.waits; ++i) {
      Wait one = me_.waiting[i];
      if (keeps(one)) me_.waiting[kept++] = one;
    }
    for (int i = kept; i < me_.waits; ++i) me_.waiting[i] = {};
    me_.waits = kept;
  }

  void end_deferred(Set puts) {
    keep_waits([&](Wait& one) {
      one.children &= ~puts;
      if (!one.children) append(model_.shard_of(one.parent), move(kAck, one.parent));
      return one.children;
    });
  }

  State& state_;
  Worker& me_;
  const Model& model_;
};
