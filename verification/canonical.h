// States that differ in names and in absolute numbers alone are one.
#pragma once
#include "steps.h"

class Canonical {
 public:
  explicit Canonical(State state) : state_(state) {}

  State result() {
    for (int k = 0; k < kShards; ++k) drop_copies(k);
    for (int k = 0; k < kShards; ++k) rename_ids(k), lower_sequences(k), lower_versions(k), sort_members(k);
    if (state_.copies == 2 && memcmp(&state_.under_way[0], &state_.under_way[1], sizeof(Copy)) > 0)
      std::swap(state_.under_way[0], state_.under_way[1]);
    return state_;
  }

 private:
  // An exchange under an id that no shard knows, or may know again, changes nothing.
  void drop_copies(int k) {
    for (int i = 0; i < state_.copies; ++i) {
      const Copy& copy = state_.under_way[i];
      if (copy.shard != k || copy.call.kind != kExchange) continue;
      bool known = member(state_.shards[k], copy.call.id);
      for (Shard& each : state_.history[k].shards) known |= member(each, copy.call.id) != nullptr;
      for (Worker& w : state_.workers) known |= w.with[k].call.kind == kRejoin && w.with[k].call.new_id == copy.call.id;
      if (known) continue;
      for (int j = i; j + 1 < state_.copies; ++j) state_.under_way[j] = state_.under_way[j + 1];
      state_.under_way[--state_.copies] = Copy{};
      --i;
    }
  }

  void rename_ids(int k) {
    Byte names[32] = {}, next = 1;
    Steps::each_id(state_, k, [&](Byte& id) {
      if (!id) return;
      if (!names[id]) names[id] = next++;
      id = names[id];
    });
  }

  void lower_sequences(int k) {
    for (Byte id = 1; id < 32; ++id) {
      int least = 255;
      bool named = false;
      each_sequence(k, id, [&](Byte& seq) { named = true, least = seq < least ? seq : least; });
      if (!named) break;
      if (least > 0) each_sequence(k, id, [&](Byte& seq) { seq -= least; });
    }
  }

  template <class F>
  void each_sequence(int k, Byte id, F visit) {
    for (Worker& w : state_.workers) {
      Dialogue& d = w.with[k];
      if (d.id == id && d.joined && (w.status == kUp || w.status == kStopping)) visit(d.seq);
      if (d.call.kind == kExchange && d.call.id == id) visit(d.call.seq);
    }
    const auto in = [&](Shard& shard) {
      for (Member& each : shard.members)
        if (each.id == id) visit(each.last_seq);
    };
    in(state_.shards[k]);
    for (Shard& each : state_.history[k].shards) in(each);
    for (int i = 0; i < state_.copies; ++i) {
      Copy& copy = state_.under_way[i];
      if (copy.shard == k && copy.call.kind == kExchange && copy.call.id == id) visit(copy.call.seq);
    }
  }

  void lower_versions(int k) {
    int least = state_.shards[k].version;
    for (int i = 0; i < state_.history[k].count; ++i) least = std::min<int>(least, state_.history[k].shards[i].version);
    for (Worker& w : state_.workers)
      if (asked(w, k)) least = std::min<int>(least, w.versions[k]);
    state_.shards[k].version -= least;
    for (int i = 0; i < state_.history[k].count; ++i) state_.history[k].shards[i].version -= least;
    for (Worker& w : state_.workers)
      if (asked(w, k)) w.versions[k] -= least;
  }

  static bool asked(const Worker& w, int k) { return k == kHome ? w.stage >= kShards : w.stage >= k; }

  void sort_members(int k) {
    const auto sort = [](Shard& shard) {
      for (int i = 1; i < kMembers; ++i)
        for (int j = i; j > 0 && before(shard.members[j], shard.members[j - 1]); --j)
          std::swap(shard.members[j], shard.members[j - 1]);
    };
    sort(state_.shards[k]);
    for (Shard& each : state_.history[k].shards) sort(each);
  }

  static bool before(const Member& a, const Member& b) { return (a.id ? a.id : 255) < (b.id ? b.id : 255); }

  State state_;
};

inline State canonical(const State& state, bool alike) {
  State one = Canonical(state).result();
  if (!alike) return one;
  State other = state;  // the workers change their roles
  std::swap(other.workers[0], other.workers[1]);
  other = Canonical(other).result();
  return memcmp(&one, &other, sizeof one) <= 0 ? one : other;
}
