// A moment of the world: a state, and the receiver of its possible steps.
#pragma once
#include "answers.h"

struct Sink {
  virtual void step(State& next, const char* what, int a = 0, int b = 0, int c = 0) = 0;
  virtual void violation(const char* what) = 0;
  virtual ~Sink() = default;
};

struct Moment {
  const State& state;
  const Model& model;
  const Budget& budget;  // the faults that were allowed at the beginning
  Sink& sink;
};

// -- Ids, and all places that still contain them.

template <class F>
void each_id(State& state, int k, F visit) {
  for (Worker& w : state.workers) visit(w.with[k].id), visit(w.with[k].call.id), visit(w.with[k].call.new_id);
  for (Member& each : state.shards[k].members) visit(each.id);
  for (int i = 0; i < state.history[k].count; ++i)
    for (Member& each : state.history[k].shards[i].members) visit(each.id);
  for (int i = 0; i < state.copies; ++i) {
    Copy& copy = state.under_way[i];
    if (copy.shard == k) visit(copy.call.id), visit(copy.call.new_id);
  }
}

inline Byte fresh_id(const State& state, int k) {
  unsigned used = 1;
  each_id(const_cast<State&>(state), k, [&](Byte id) { used |= 1u << id; });
  Byte id = 1;
  while (used >> id & 1) ++id;
  if (id > 30) throw "too many ids";
  return id;
}

// -- Changes of a shard that a roll-back may undo.

inline Shard& changed(State& state, int k) {
  if (state.left.roll) {
    History& past = state.history[k];
    past.shards[1] = past.shards[0];
    past.shards[0] = state.shards[k];
    if (past.count < kSnapshots) ++past.count;
  }
  return state.shards[k];
}

inline void apply(State& state, int k, const Call& call, Reply& reply, const Model& model) {
  Shard after = state.shards[k];
  reply = call.kind == kExchange ? exchange(after, call, k == kHome, model.rules)
                                 : rejoin(after, call, k == kHome, model.rules);
  if (!memcmp(&after, &state.shards[k], sizeof after)) return;
  changed(state, k) = after;
}
