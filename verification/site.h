// The requests of a small crawl, with the links between pages and the shard of each page.
#pragma once
#include <string>

#include "state.h"

struct Site {
  const char* name;
  int count;
  int shard[kRequests];     // the shard of each request, modulo the number of shards
  Set children[kRequests];
  Set start;                // the requests of every start()
  Set extra;                // a timer of the first worker adds these after its start() (`engine.crawl`)
};

constexpr Site kSites[] = {
    {"one", 1, {0}, {0}, 0b1, 0},
    {"chain", 3, {0, 1, 0}, {0b010, 0b100, 0}, 0b1, 0},
    {"back", 3, {1, 0, 1}, {0b010, 0b100, 0}, 0b1, 0},
    {"round", 3, {0, 1, 2}, {0b010, 0b100, 0}, 0b1, 0},
    {"fork", 4, {0, 1, 1, 0}, {0b0110, 0b1000, 0b1000, 0}, 0b1, 0},
    {"pair", 2, {0, 1}, {0b10, 0}, 0b1, 0},
    {"inward", 2, {1, 0}, {0b10, 0}, 0b1, 0},
    {"away", 1, {1}, {0}, 0b1, 0},
    {"starts", 2, {0, 1}, {0, 0}, 0b11, 0},
    {"extra", 2, {0, 1}, {0, 0}, 0b01, 0b10},
};

inline const Site* site_named(const std::string& name) {
  for (const Site& each : kSites)
    if (name == each.name) return &each;
  return nullptr;
}
