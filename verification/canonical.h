// Turns states that differ only in names and absolute numbers into one state.
#pragma once
#include <algorithm>
#include <cstddef>

#include "steps.h"

class Canonical {
 public:
  explicit Canonical(State& state) : state_(state) {}

  void run() {
    for (int k = 0; k < kShards; ++k) drop_copies(k);
    for (int k = 0; k < kShards; ++k) rename_ids(k), lower_sequences(k), lower_versions(k), sort_members(k);
    if (state_.copies == 2 && memcmp(&state_.under_way[0], &state_.under_way[1], sizeof(Copy)) > 0)
      std::swap(state_.under_way[0], state_.under_way[1]);
  }

 private:
  // Drop late copies that have no effect: exchanges with an id that no shard knows, or can know after a roll-back.
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
    each_id(state_, k, [&](Byte& id) {
      if (!id) return;
      if (!names[id]) names[id] = next++;
      id = names[id];
    });
  }

  // Each id's sequence numbers are counted from the least number that is still in use. Only two facts about two numbers
  // matter: which one is larger, and whether it directly follows the other.
  void lower_sequences(int k) {
    Byte least[32];
    uint64_t named[32] = {};
    memset(least, 255, sizeof least);
    each_sequence(k, [&](Byte id, Byte& seq) { least[id] = std::min(least[id], seq); });
    each_sequence(k, [&](Byte id, Byte& seq) {
      seq -= least[id];
      if (seq > 63) throw "sequences are too far apart";
      named[id] |= uint64_t(1) << seq;
    });
    each_sequence(k, [&](Byte id, Byte& seq) {
      Byte lower = 0, before = 0;
      for (uint64_t rest = named[id] >> 1 << 1; rest && before < seq; rest &= rest - 1) {
        const Byte at = Byte(__builtin_ctzll(rest));
        lower += at == before + 1 ? 1 : 2, before = at;
      }
      seq = lower;
    });
  }

  template <class F>
  void each_sequence(int k, F visit) {
    for (Worker& w : state_.workers) {
      Dialogue& d = w.with[k];
      if (d.joined && (w.status == kUp || w.status == kStopping)) visit(d.id, d.seq);
      if (d.call.kind == kExchange) visit(d.call.id, d.call.seq);
    }
    const auto in = [&](Shard& shard) {
      for (Member& each : shard.members)
        if (each.id) visit(each.id, each.last_seq);
    };
    in(state_.shards[k]);
    for (int i = 0; i < state_.history[k].count; ++i) in(state_.history[k].shards[i]);
    for (int i = 0; i < state_.copies; ++i) {
      Copy& copy = state_.under_way[i];
      if (copy.shard == k && copy.call.kind == kExchange) visit(copy.call.id, copy.call.seq);
    }
  }

  void lower_versions(int k) {
    if (kShards == 1) return;
    Byte least = state_.shards[k].version;
    History& past = state_.history[k];
    for (int i = 0; i < past.count; ++i) least = std::min(least, past.shards[i].version);
    for (Worker& w : state_.workers)
      if (asked(w, k)) least = std::min(least, w.versions[k]);
    state_.shards[k].version -= least;
    for (int i = 0; i < past.count; ++i) past.shards[i].version -= least;
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
    for (int i = 0; i < state_.history[k].count; ++i) sort(state_.history[k].shards[i]);
  }

  static bool before(const Member& a, const Member& b) { return (a.id ? a.id : 255) < (b.id ? b.id : 255); }

  State& state_;
};

// *alike*: all workers behave the same, so two states that differ only by a swap of the workers become one state.
inline State canonical(const State& state, bool alike) {
  State one = state;
  const Worker* const w = state.workers;
  // The fields of Worker before `versions` contain no ids, and usually decide the order of the two workers.
  const int order = kWorkers == 2 && alike ? memcmp(&w[0], &w[kWorkers - 1], offsetof(Worker, versions)) : -1;
  if (order > 0) std::swap(one.workers[0], one.workers[kWorkers - 1]);
  Canonical(one).run();
  if (order) return one;
  State other = state;
  std::swap(other.workers[0], other.workers[kWorkers - 1]);
  Canonical(other).run();
  return memcmp(&one, &other, sizeof one) <= 0 ? one : other;
}
