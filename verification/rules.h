// The rules of the protocol. The explorer can leave out each rule, to show the violation that the rule prevents.
#pragma once
#include <string>

struct Rules {
  // Rules of one shard, with their numbers in docs/internals/evidence.md.
  bool next_number_only = true;       // 1: an exchange is applied only if its number follows the last one
  bool log_of_all_puts = true;        // 2: the log also keeps children and repeats
  bool retire_by_exchange = true;     // 3: an accepted exchange, not the clock, retires a logged put
  bool run_in_every_call = true;      // 4: a call for an older run is not applied
  bool resync_in_older_run = true;    // 5: a call for a newer run than the stored run is not applied
  bool seeding_stays = true;          // 6: a worker that stops keeps its level of seeding
  bool held = true;                   // 7: Redis compares the number of leases that the worker holds
  bool release_by_rejoin_only = true; // 8: only a rejoin releases leases that a worker does not know
  bool puts_reopen = true;            // 9: a put opens a finished run again
  bool fence_before_drain = true;     // 12: leases are taken only from a fenced worker
  // Rules of several shards. Retired: a roll-back cannot undo it any more. Parentless: yielded by start() or a timer,
  // not by a page. A worker raises its level of seeding while it may still put parentless requests, or put them again.
  bool defer = true;                // an ack waits for the puts of its page in other shards
  bool defer_for_known = true;       // an ack also waits for links that this worker has put before
  bool defer_until_retired = true;  // an ack waits until these puts are retired, not only confirmed
  bool level_until_retired = true;    // the level stays raised until parentless puts in other shards are retired
  bool raise_retires = true;          // the level also stays raised until its raise is retired at home
  bool raise_first = true;            // a parentless put in another shard waits until home has the raised level
  bool lowered_when_sent = true;      // a level counts as lowered as soon as the exchange that lowers it is sent
  bool finished_retires = true;       // an exchange that finds the run finished also retires the log
  bool collect_twice = true;          // before the run ends, a worker asks all shards for work, home last, and then all
                                      // except home again
  bool finish_if_unchanged = true;    // home finishes only if it has not changed since it answered that question
  bool ask_by_exchange = true;        // each of these questions is an exchange, with the next number
  bool raised_if_answers = true;      // a level counts as raised only while home answers
  bool gives_up_on_shard = true;      // a worker that alone cannot reach a shard releases pages that wait for the shard
  bool takes_none_cut_off = true;     // such a worker takes no leases until it reaches the shard again
  bool closes_cut_off = true;         // such a worker closes if it cannot store its puts without a parent

  struct Named {
    const char* name;
    bool Rules::* rule;
    bool of_many;  // only with several shards
  };
  static constexpr int kCount = 25;
  static const Named all[kCount];

  bool leave_out(const std::string& name) {
    for (const Named& each : all)
      if (name == each.name) {
        this->*each.rule = false;
        return true;
      }
    return false;
  }
};

inline const Rules::Named Rules::all[Rules::kCount] = {
    {"next_number_only", &Rules::next_number_only, false},
    {"log_of_all_puts", &Rules::log_of_all_puts, false},
    {"retire_by_exchange", &Rules::retire_by_exchange, false},
    {"run_in_every_call", &Rules::run_in_every_call, false},
    {"resync_in_older_run", &Rules::resync_in_older_run, false},
    {"seeding_stays", &Rules::seeding_stays, false},
    {"held", &Rules::held, false},
    {"release_by_rejoin_only", &Rules::release_by_rejoin_only, false},
    {"puts_reopen", &Rules::puts_reopen, false},
    {"fence_before_drain", &Rules::fence_before_drain, false},
    {"defer", &Rules::defer, true},
    {"defer_for_known", &Rules::defer_for_known, true},
    {"defer_until_retired", &Rules::defer_until_retired, true},
    {"level_until_retired", &Rules::level_until_retired, true},
    {"raise_retires", &Rules::raise_retires, true},
    {"raise_first", &Rules::raise_first, true},
    {"lowered_when_sent", &Rules::lowered_when_sent, true},
    {"finished_retires", &Rules::finished_retires, true},
    {"collect_twice", &Rules::collect_twice, true},
    {"finish_if_unchanged", &Rules::finish_if_unchanged, true},
    {"ask_by_exchange", &Rules::ask_by_exchange, true},
    {"raised_if_answers", &Rules::raised_if_answers, true},
    {"gives_up_on_shard", &Rules::gives_up_on_shard, true},
    {"takes_none_cut_off", &Rules::takes_none_cut_off, true},
    {"closes_cut_off", &Rules::closes_cut_off, true},
};
