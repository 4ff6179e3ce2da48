// The visited states, in a table of hashes.
#pragma once
#include <vector>

#include "state.h"

// The visited states, by 96 bits of their hash. The chance that any two of 10^9 states have the same bits is 10^-11.
class Seen {
 public:
  Seen() : table_(1 << 16) {}

  // Return the number of this state; a new state gets the next one.
  uint32_t number(uint64_t a, uint32_t b, bool& is_new) {
    a |= !a;  // not 0, which marks a free slot
    if (count > table_.size() / 8 * 5) grow();
    size_t at = slot(a, b);
    is_new = !table_[at].a;
    if (is_new) table_[at] = {a, b, count++};
    return table_[at].number;
  }

  uint32_t count = 0;

 private:
  struct Entry {
    uint64_t a;
    uint32_t b, number;
  };

  size_t slot(uint64_t a, uint32_t b) const {
    const size_t mask = table_.size() - 1;
    size_t i = a >> 20 & mask;
    while (table_[i].a && (table_[i].a != a || table_[i].b != b)) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    std::vector<Entry> old(table_.size() * 2);
    old.swap(table_);
    for (const Entry& each : old)
      if (each.a) table_[slot(each.a, each.b)] = each;
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
