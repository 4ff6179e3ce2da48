// A queue of states that leaves out their zero bytes. Otherwise a layer of 10^8 states would not fit into memory.
#pragma once
#include <deque>
#include <vector>

#include "state.h"

class PackedStates {
 public:
  void add(const State& state) {
    if (chunks_.empty() || chunks_.back().begins.size() == kChunk) chunks_.emplace_back();
    Chunk& chunk = chunks_.back();
    chunk.begins.push_back(uint32_t(chunk.bytes.size()));
    const Byte* const bytes = reinterpret_cast<const Byte*>(&state);
    for (size_t i = 0; i < sizeof state; i += 8) {
      const size_t count = sizeof state - i < 8 ? sizeof state - i : 8, at = chunk.bytes.size();
      Byte mask = 0;
      chunk.bytes.push_back(0);
      for (size_t j = 0; j < count; ++j)
        if (bytes[i + j]) mask |= 1u << j, chunk.bytes.push_back(bytes[i + j]);
      chunk.bytes[at] = mask;
    }
  }

  State get(size_t index) const {
    index += dropped_;
    const Chunk& chunk = chunks_[index / kChunk];
    const Byte* from = &chunk.bytes[chunk.begins[index % kChunk]];
    State state = {};
    Byte* const bytes = reinterpret_cast<Byte*>(&state);
    for (size_t i = 0; i < sizeof state; i += 8)
      for (Byte mask = *from++; mask; mask &= mask - 1) bytes[i + __builtin_ctz(mask)] = *from++;
    return state;
  }

  void drop_first(size_t count) {
    dropped_ += count;
    for (; dropped_ >= kChunk; dropped_ -= kChunk) chunks_.pop_front();
  }

 private:
  static constexpr size_t kChunk = 1 << 12;
  struct Chunk {
    std::vector<uint32_t> begins;
    std::vector<Byte> bytes;
  };
  std::deque<Chunk> chunks_;
  size_t dropped_ = 0;  // states dropped from the first chunk
};
