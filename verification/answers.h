// The effect of each answer of a shard on a worker (frontier/worker/protocol.py).
#pragma once
#include "worker.h"

class Answers : public WorkerSteps {
 public:
  using WorkerSteps::WorkerSteps;

  void receive(int k) {
    Dialogue& d = me_.with[k];
    const Call call = d.call;
    const Reply reply = d.reply;
    memset(&d.call, 0, sizeof d.call);
    memset(&d.reply, 0, sizeof d.reply);
    if (reply.kind == kGone) return close(kClosedLost);
    if (call.kind == kExchange)
      answer_to_exchange(k, call, reply);
    else
      answer_to_rejoin(k, call, reply);
  }

 private:
  void confirm(int k, const Call& call) {
    Dialogue& d = me_.with[k];
    const Set puts = puts_in(call);
    memmove(d.outbox, d.outbox + call.count, kMoves - call.count);
    memset(d.outbox + kMoves - call.count, 0, call.count);
    d.count -= call.count;
    if (!model_.promised_when_retired) promise(puts);
    retire(k, call.ripe);
    Set logged = puts;
    if (!model_.rules.log_of_all_puts) logged &= model_.site.start | model_.site.extra;
    d.log |= logged;
    d.ripe &= ~logged;
    if (!model_.rules.defer_until_retired) end_deferred(puts);
    if (!model_.rules.level_until_retired) me_.parentless &= ~puts;
  }

  void grant(Set leases) {
    for (int r = 0; r < model_.site.count; ++r) {
      const Set one = only(r);
      if (!(leases & one)) continue;
      if (me_.running & one)
        me_.owned |= one;
      else if (held(model_.shard_of(r)) & one)
        continue;
      else if (!takes_leases())
        append(model_.shard_of(r), move(kRelease, r));
      else
        me_.buffer |= one;
    }
    if (leases) me_.forget_collect();
  }

  void answer_to_exchange(int k, const Call& call, const Reply& reply) {
    Dialogue& d = me_.with[k];
    switch (reply.kind) {
      case kResync: d.rejoins = 1; return;
      case kNotAppliedFinished:
        if (k != kHome) return ended_without_me(may_miss());
        ++d.seq;
        if (model_.rules.finished_retires) retire(k, call.ripe);
        lower();
        if (call.count && model_.rules.puts_reopen)
          d.rejoins = 1;
        else
          end();
        return;
      case kOk:
      case kAppliedFinished:
        ++d.seq;
        if (k == kHome) {
          me_.level = call.seeding;
          if (!call.seeding) lower();
        }
        confirm(k, call);
        if (k == kHome && call.seeding) raise();
        grant(reply.leases);
        if (reply.kind == kAppliedFinished) end();
    }
  }

  // Home reports that the run is finished.
  void end() {
    if (me_.parentless || !me_.start_over) return;  // the worker opens the run again
    if (quiet() && !me_.cut) close(kClosedFinished);  // otherwise the worker asks all shards again
  }

  bool may_miss() const { return !me_.start_over || me_.parentless || puts_in_outboxes(me_); }

  // A shard is cleared or in a later run: the run has ended without this worker.
  void ended_without_me(bool may_miss) {
    if (is_current() && may_miss) state_.told = 1;
    close(kClosedFinished);
  }

  void answer_to_rejoin(int k, const Call& call, const Reply& reply) {
    Dialogue& d = me_.with[k];
    if (reply.kind == kNotAppliedFinished) {
      if (k == kHome && outbox_has_parentless(k) && call.parentless != kWaitingPuts) return;  // it rejoins again
      return ended_without_me(k == kHome ? call.parentless : may_miss());
    }
    const Set mine = model_.in_shard(k), lost = mine & ~reply.leases;
    me_.buffer &= ~lost;
    me_.owned &= ~lost;
    keep_waits([&](const Wait& one) { return !(lost & only(one.parent)); });
    Byte before[kMoves];
    const int count = d.count;
    memcpy(before, d.outbox, sizeof before);
    memset(d.outbox, 0, sizeof d.outbox);
    d.count = 0;
    for (int r = 0; r < model_.site.count; ++r)
      if (d.log & only(r)) append(k, move(kPut, r));
    for (int i = 0; i < count; ++i) {
      const Set one = only(request_of(before[i]));
      if (kind_of(before[i]) == kPut ? !(d.log & one) : kind_of(before[i]) == kAck && reply.leases & one)
        append(k, before[i]);
    }
    d.log = d.ripe = 0;
    d.id = call.new_id, d.seq = 1, d.rejoins = 0;
    if (k == kHome) me_.level = 1, me_.raised = kNotRaised;
  }
};
