// The command line: explore [--site NAME] [--without RULE] [--most STATES] [--capacity N] [--trace] [--ends], and for
// each fault its maximum number. A worker buffers and runs at most --capacity requests. --ends: check that every state
// can lead to an end. The faults: --kill, --fence (a wrong death), --lose (a reply), --delay (a copy of a call),
// --roll (Redis is rolled back), --flush, --term (SIGTERM), --again (a next run), --pause (an exchange asks for no
// lease), --cut (a worker cannot reach a shard any more), --mend (it reaches the shard again).
// Exit status: 0 no violation, 1 a violation, 2 cannot run, 3 not all states were visited.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "explorer.h"

int main(int count, char** words) {
  const Site* site = &kSites[0];
  Rules rules;
  Budget budget = {};
  size_t most = 50'000'000;
  bool traced = false, to_ends = false;
  int capacity = 1;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] { return i + 1 < count ? words[++i] : (exit(2), nullptr); };
    if (word == "--site") site = site_named(value());
    else if (word == "--without") { if (!rules.leave_out(value())) { fprintf(stderr, "no such rule\n"); return 2; } }
    else if (word == "--most") most = strtoull(value(), nullptr, 10);
    else if (word == "--capacity") capacity = atoi(value());
    else if (word == "--trace") traced = true;
    else if (word == "--ends") to_ends = true;
    else if (word == "--kill") budget.kill = atoi(value());
    else if (word == "--fence") budget.fence = atoi(value());
    else if (word == "--lose") budget.lose = atoi(value());
    else if (word == "--delay") budget.delay = atoi(value());
    else if (word == "--roll") budget.roll = atoi(value());
    else if (word == "--flush") budget.flush = atoi(value());
    else if (word == "--term") budget.term = atoi(value());
    else if (word == "--pause") budget.pause = atoi(value());
    else if (word == "--again") budget.again = atoi(value());
    else if (word == "--cut") budget.cut = atoi(value());
    else if (word == "--mend") budget.mend = atoi(value());
    else { fprintf(stderr, "unknown: %s\n", word.c_str()); return 2; }
  }
  if (!site) return 2;
  const Model model{*site, rules, capacity, (budget.kill || budget.cut) && budget.roll};
  const auto began = std::chrono::steady_clock::now();
  try {
    const Found found = Explorer(model, budget, most, !site->extra && !traced, traced).run(to_ends);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    printf("%zu states, %zu steps deep, %.1f s%s\n", found.states, found.deepest, took, found.complete ? "" : ", NOT ALL");
    if (found.violation.empty()) return found.complete ? 0 : 3;
    printf("VIOLATION: %s\n", found.violation.c_str());
    for (const std::string& each : found.trace) printf("  %s\n", each.c_str());
    return 1;
  } catch (const char* error) {
    fprintf(stderr, "%s\n", error);
    return 2;
  }
}
