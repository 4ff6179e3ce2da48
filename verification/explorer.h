// Visits every state that can be reached, the nearest first, so that the first violation has a shortest trace.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "canonical.h"
#include "steps.h"

struct Found {
  std::string violation;  // empty: none
  std::vector<std::string> trace;
  size_t states = 0, deepest = 0;
  bool complete = true;
};

// The states seen, by 128 bits of hash: two of 10^9 share these with a chance of 2 * 10^-21.
class Seen {
 public:
  struct Entry {
    uint64_t a, b;
  };

  Seen() : table_(1 << 16) {}

  // Return whether it is new.
  bool add(uint64_t a, uint64_t b) {
    a |= !a;  // 0: free
    if (count > table_.size() / 8 * 5) grow();
    if (!insert(a, b)) return false;
    ++count;
    return true;
  }

  size_t count = 0;

 private:
  bool insert(uint64_t a, uint64_t b) {
    for (size_t i = b & (table_.size() - 1);; i = (i + 1) & (table_.size() - 1)) {
      if (!table_[i].a) {
        table_[i] = {a, b};
        return true;
      }
      if (table_[i].a == a && table_[i].b == b) return false;
    }
  }

  void grow() {
    std::vector<Entry> old(table_.size() * 2);
    old.swap(table_);
    for (const Entry& each : old)
      if (each.a) insert(each.a, each.b);
  }

  std::vector<Entry> table_;
};

inline void hash(const State& state, uint64_t& a, uint64_t& b) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(&state);
  a = 0x9E3779B97F4A7C15u, b = 0xC2B2AE3D27D4EB4Fu;
  size_t i = 0;
  for (; i + 8 <= sizeof state; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, 8);
    if (!word) continue;
    word += i * 0xD6E8FEB86659FD93u;
    a = (a ^ word) * 0xFF51AFD7ED558CCDu, a ^= a >> 32;
    b = (b + word) * 0xC4CEB9FE1A85EC53u, b ^= b >> 29;
  }
  for (; i < sizeof state; ++i) a = (a ^ (bytes[i] + i)) * 0xFF51AFD7ED558CCDu, b = (b + a) * 0xC4CEB9FE1A85EC53u;
  a ^= a >> 31, b ^= b >> 33;
}

class Explorer {
 public:
  // *alike*: all workers do the same.
  Explorer(const Steps& steps, size_t most, bool alike) : steps_(steps), most_(most), alike_(alike) {}

  // Each layer holds the states that are as many steps from the first one. With *traced*, all layers are kept.
  Found run(bool traced) {
    Found found;
    Seen seen;
    struct Node {
      State state;
      uint32_t parent;
    };
    std::vector<std::vector<Node>> layers(1);
    layers[0].push_back({canonical(steps_.initial(), alike_), 0});
    uint64_t a, b;
    hash(layers[0][0].state, a, b);
    seen.add(a, b);
    while (!layers.back().empty()) {
      std::vector<Node> next_layer;
      const std::vector<Node>& layer = layers.back();
      for (uint32_t i = 0; i < layer.size() && found.violation.empty(); ++i) {
        struct Collect : Sink {
          Found& found;
          Seen& seen;
          std::vector<Node>& layer;
          uint32_t parent;
          bool alike;
          int steps = 0;
          Collect(Found& f, Seen& s, std::vector<Node>& l, uint32_t p, bool same)
              : found(f), seen(s), layer(l), parent(p), alike(same) {}
          void step(State& next, const char*, int, int, int) override {
            ++steps;
            const State same = canonical(next, alike);
            uint64_t a, b;
            hash(same, a, b);
            if (seen.add(a, b)) layer.push_back({same, parent});
          }
          void violation(const State&, const char* what) override {
            if (found.violation.empty()) found.violation = what;
          }
        } collect(found, seen, next_layer, i, alike_);
        steps_.all(layer[i].state, collect);
        if (!collect.steps && found.violation.empty())
          if (const char* wrong = steps_.wrong_end(layer[i].state)) found.violation = wrong;
        if (!found.violation.empty()) {
          if (traced) {
            std::vector<uint32_t> path(1, i);
            for (size_t l = layers.size() - 1; l > 0; --l) path.push_back(layers[l][path.back()].parent);
            tell(layers, path, found);
          }
        }
        if (seen.count > most_) {
          found.complete = false;
          break;
        }
      }
      if (!found.violation.empty() || !found.complete) break;
      ++found.deepest;
      if (!traced) layers.clear();
      layers.push_back(std::move(next_layer));
    }
    found.states = seen.count;
    return found;
  }

 private:
  template <class Layers>
  void tell(const Layers& layers, const std::vector<uint32_t>& path, Found& found) {
    // The steps between two canonical states, by trying all of them.
    for (size_t l = 0; l + 1 < path.size(); ++l) {
      const State& from = layers[l][path[path.size() - 1 - l]].state;
      const State& to = layers[l + 1][path[path.size() - 2 - l]].state;
      struct Name : Sink {
        const State& to;
        bool alike;
        std::string text;
        Name(const State& t, bool same) : to(t), alike(same) {}
        void step(State& next, const char* what, int a, int b, int c) override {
          if (!text.empty() || !(canonical(next, alike) == to)) return;
          char line[200];
          snprintf(line, sizeof line, what, a, b, c);
          text = line;
        }
        void violation(const State&, const char*) override {}
      } name(to, alike_);
      steps_.all(from, name);
      found.trace.push_back(name.text);
    }
  }

  const Steps& steps_;
  size_t most_;
  bool alike_;
};
