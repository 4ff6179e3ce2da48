// The promises: nothing is lost, nothing is processed without need, and no crawl ends as finished over a loss.
#pragma once
#include "moment.h"

// The requests of this run that no worker has processed. An extra request (site.h) is missing only if it was promised
// (State::promised).
inline Set missing(const Moment& now, const State& state) {
  Set found = Set(((1u << now.model.site.count) - 1) & ~(now.model.site.extra & ~state.promised));
  for (int r = 0; r < now.model.site.count; ++r)
    if (state.processed[r]) found &= ~only(r);
  return found;
}

// The requests in *found*, and all requests to which those that are not processed yet will lead.
inline Set with_children(const Moment& now, const State& state, Set found) {
  for (bool more = true; more;) {
    more = false;
    for (int r = 0; r < now.model.site.count; ++r) {
      if (!(found & only(r)) || state.processed[r]) continue;
      more |= now.model.site.children[r] & ~found;
      found |= now.model.site.children[r];
    }
  }
  return found;
}

// The requests that a worker can store: those of the shards that it reaches. Without home, it can store no request that
// has no parent, because only home opens the run for these.
inline Set storable(const Moment& now, const Worker& worker) {
  Set found = 0;
  for (int k = 0; k < kShards; ++k)
    if (!is_cut_from(worker, k)) found |= now.model.in_shard(k);
  return is_cut_from(worker, kHome) ? Set(found & ~(now.model.site.start | now.model.site.extra)) : found;
}

// The requests that live workers will put, or put again, or for which they keep their level of seeding raised, and all
// requests to which these lead. Their puts and the raised level open a finished run again.
inline Set coming(const Moment& now, const State& state) {
  Set found = 0;
  for (const Worker& each : state.workers) {
    if ((each.status != kUp && each.status != kStopping) || each.epoch != state.epoch || each.run != state.run)
      continue;
    Set own = puts_in_outboxes(each) | each.parentless;
    if (each.status == kUp && !each.start_over) own |= now.model.site.start;
    for (const Dialogue& d : each.with) own |= d.log;
    found |= own & storable(now, each);
  }
  return with_children(now, state, found);
}

inline Set stored(const Moment& now, const State& state) {
  Set found = 0;
  for (const Shard& each : state.shards)
    if (each.epoch == state.epoch && each.run == state.run) found |= each.backlog | all_in_flight(each);
  return with_children(now, state, found);
}

inline void check_end(const Moment& now, const State& next) {
  const Shard& home = next.shards[kHome];
  if (home.epoch != next.epoch || home.run != next.run) return;
  if (missing(now, next) & ~coming(now, next)) now.sink.violation("finished over a loss");
}

// Worker w has received an answer. If it closes as finished, then no missing request and no put in its outboxes may
// be lost: a shard has stored it, or a live worker will put it. A loss that a worker has reported does not count.
inline void check_close(const Moment& now, const State& next, int w) {
  const Worker& before = now.state.workers[w];
  if (next.workers[w].status != kClosedFinished || before.epoch != next.epoch || before.run != next.run || next.told)
    return;
  Set wanted = missing(now, next);
  const Set own = puts_in_outboxes(before);
  for (int r = 0; r < now.model.site.count; ++r)
    if (own & only(r) && !next.processed[r]) wanted |= only(r);
  if (wanted & ~coming(now, next) & ~stored(now, next))
    now.sink.violation("a worker closes as finished over a loss");
}

// A request is processed at most once, plus once for each fault that took its lease.
inline void check_processed(const Moment& now, const State& next, int request) {
  const Budget &all = now.budget, &left = now.state.left;
  const int faults = (all.kill - left.kill) + (all.fence - left.fence) + (all.roll - left.roll) +
                     (all.flush - left.flush) + (all.term - left.term) + (all.cut - left.cut);
  if (next.processed[request] > 1 + faults)
    now.sink.violation("a request is processed more than 1 + faults times");
}

// The crawl has ended when every worker has closed. But a worker that is cut off from a shard may wait forever after
// all others have closed.
inline bool has_ended(const State& state) {
  for (const Worker& each : state.workers)
    if (each.status != kClosedFinished && each.status != kClosedLost && each.status != kClosedCutOff && !each.cut)
      return false;
  return true;
}

// For a state in which no step is possible: return the broken promise, or null if there is none.
inline const char* wrong_end(const Moment& now) {
  if (!has_ended(now.state)) return "nothing can happen any more, and the crawl has not ended";
  const Shard& home = now.state.shards[kHome];
  const bool is_over = home.epoch == now.state.epoch && home.run == now.state.run && home.phase != kOpen;
  return is_over && missing(now, now.state) && !now.state.told ? "over, with a loss" : nullptr;
}
