// Redis's side of the protocol: the scripts in scrapy_dq/frontier/lua, for each shard.
#pragma once
#include "rules.h"
#include "site.h"
#include "state.h"

constexpr bool counts_changes() { return kShards > 1; }

inline Member* member(Shard& shard, Byte id) {
  for (Member& each : shard.members)
    if (id && each.id == id) return &each;
  return nullptr;
}

inline Member& registered(Shard& shard, Byte id, Byte seeding) {
  for (Member& each : shard.members)
    if (!each.id) {
      each = Member{};
      each.id = id, each.seeding = seeding;
      shard.version += counts_changes() && seeding;
      return each;
    }
  throw "too many members: raise kMembers";
}

inline Set all_in_flight(const Shard& shard) {
  Set found = 0;
  for (const Member& each : shard.members) found |= each.in_flight;
  return found;
}

inline bool is_empty(const Shard& shard) { return !shard.backlog && !all_in_flight(shard); }

inline bool seeds(const Shard& home) {
  for (const Member& each : home.members)
    if (each.id && each.seeding) return true;
  return false;
}

// Begin a new run: the old run's data is gone.
inline void begin_run(Shard& shard, Byte run) {
  shard.run = run, shard.phase = kOpen;
  shard.seen = shard.backlog = 0;
  memset(shard.members, 0, sizeof shard.members);
}

inline void settle_all(Shard& shard, Member& of, const Call& call) {
  for (int i = 0; i < call.count; ++i) {
    const Set one = only(request_of(call.moves[i]));
    switch (kind_of(call.moves[i])) {
      case kPut:
        if (shard.seen & one) break;
        shard.seen |= one, shard.backlog |= one, shard.phase = kOpen;
        shard.version += counts_changes();
        break;
      case kAck: of.in_flight &= ~one; break;
      case kRelease:
        if (of.in_flight & one) of.in_flight &= ~one, shard.backlog |= one;
        break;
    }
  }
}

// exchange.lua. *is_home*: the shard has the levels of seeding, and decides when the run ends.
inline Reply exchange(Shard& shard, const Call& call, bool is_home, const Rules& rules) {
  if (!shard.epoch || shard.epoch != call.epoch) return {kGone, 0};
  if (rules.resync_in_older_run && shard.run < call.run) return {kResync, 0};
  if (rules.run_in_every_call && shard.run > call.run) return {kNotAppliedFinished, 0};
  Member* me = member(shard, call.id);
  if (me && me->last_seq == call.seq) return {me->reply, Set(me->granted & me->in_flight)};
  const bool follows = me && (rules.next_number_only ? call.seq == me->last_seq + 1 : call.seq > me->last_seq);
  const bool was_finished = shard.phase != kOpen;
  if (was_finished) {
    if (!follows) return {kResync, 0};
    const bool opens = rules.puts_reopen && (puts_in(call) || (kShards > 1 && call.seeding));
    if (shard.phase == kCleared || !opens) {
      me->last_seq = call.seq, me->reply = kNotAppliedFinished, me->granted = 0;
      return {kNotAppliedFinished, 0};
    }
  }
  if (!me || me->fenced || !follows) return {kResync, 0};
  if (rules.held && size(me->in_flight) != call.held) return {kResync, 0};
  settle_all(shard, *me, call);
  if (is_home) {
    shard.version += counts_changes() && call.seeding && !me->seeding;
    me->seeding = call.seeding;
  }
  if (is_home && kShards > 1 && call.seeding) shard.phase = kOpen;
  Set granted = 0;
  for (int i = 0; i < call.want && shard.backlog; ++i) {
    const Set one = only(first(shard.backlog));
    shard.backlog &= ~one, me->in_flight |= one, granted |= one;
  }
  if (is_home && kShards == 1 && is_empty(shard) && !seeds(shard)) shard.phase = kFinished;
  me->last_seq = call.seq, me->granted = granted;
  me->reply = is_home && shard.phase == kFinished ? kAppliedFinished : kOk;
  return {me->reply, granted};
}

// rejoin.lua
inline Reply rejoin(Shard& shard, const Call& call, bool is_home, const Rules& rules) {
  if (!shard.epoch || shard.epoch != call.epoch) return {kGone, 0};
  if (Member* me = member(shard, call.new_id)) return {kOk, me->in_flight};
  Member* old = member(shard, call.id);
  if (rules.run_in_every_call && shard.run > call.run && !old) return {kNotAppliedFinished, 0};
  if (rules.resync_in_older_run && shard.run < call.run) {
    // The shard was rolled back into an earlier run. An open home keeps its entries, because other workers may have
    // joined it since.
    if (!is_home || shard.phase != kOpen) begin_run(shard, call.run), old = nullptr;
    shard.seen = 0, shard.run = call.run;
  }
  if (shard.phase != kOpen) {
    const bool comes_back = !call.parentless && !(old && !old->fenced);
    if (comes_back || shard.phase == kCleared) return {kNotAppliedFinished, 0};
  }
  Set owned = 0;
  if (old && !old->fenced) {
    owned = old->in_flight & call.held_set;
    shard.backlog |= old->in_flight & ~owned;
    *old = Member{};
  } else if (old && !old->in_flight) {
    *old = Member{};
  }
  registered(shard, call.new_id, is_home).in_flight = owned;
  return {kOk, owned};
}

inline void fence(Member& who) { who.fenced = 1, who.seeding = 0; }

// drain.lua and leave.lua: the leases of *who* wait again, and *who* is no longer a member.
inline void remove(Shard& shard, Member& who) {
  shard.backlog |= who.in_flight;
  who = Member{};
}
