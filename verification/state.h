// The model's world: shards in Redis, workers, and calls under way.
//
// Sets of requests are bit masks. Every field consists of bytes, so two states are equal if their bytes are equal.
// A request is parentless if start() or a timer yields it, not a page. While a worker may still put parentless
// requests, or put them again, its level of seeding at home is 1. This keeps the run open.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef SHARDS
#define SHARDS 1
#endif
#ifndef WORKERS
#define WORKERS 2
#endif

using Byte = uint8_t;
using Set = uint8_t;  // a set of requests

constexpr int kShards = SHARDS;
constexpr int kHome = 0;     // the shard with the levels of seeding; it decides when the run ends
constexpr int kWorkers = WORKERS;
constexpr int kRequests = 6;  // maximum number of requests in a site
constexpr int kMembers = 4;   // maximum number of registrations in a shard
constexpr int kMoves = 8;     // maximum number of moves in an outbox
constexpr int kWaiting = 3;   // maximum number of acks of a worker that wait for children in other shards
constexpr int kSnapshots = 2; // maximum number of scripts that a roll-back undoes
constexpr int kCopies = 2;    // maximum number of late calls that may arrive although no worker waits for them

constexpr Set kRaise = 0x80;  // in home's log: the raise of the level, which a roll-back may undo

constexpr Set only(int request) { return Set(1u << request); }
inline int size(Set set) { return __builtin_popcount(set); }
inline int first(Set set) { return __builtin_ctz(set); }

enum Phase : Byte { kOpen, kFinished, kCleared };
enum Status : Byte { kDown, kUp, kStopping, kClosedFinished, kClosedLost, kLeft, kClosedCutOff };
enum CallKind : Byte { kNoCall, kExchange, kRejoin };
enum ReplyKind : Byte { kNoReply, kOk, kAppliedFinished, kNotAppliedFinished, kResync, kGone };
enum Parentless : Byte { kNone, kWaitingPuts, kLoggedPuts };
enum MoveKind : Byte { kPut = 0x00, kAck = 0x40, kRelease = 0x80 };

inline Byte move(MoveKind kind, int request) { return Byte(kind | request); }
inline MoveKind kind_of(Byte move) { return MoveKind(move & 0xC0); }
inline int request_of(Byte move) { return move & 0x3F; }

struct Member {  // id 0: free
  Byte id, fenced, seeding, last_seq, reply;
  Set granted, in_flight;
};

struct Shard {
  Byte epoch;  // 0: absent
  Byte run, phase;
  Byte version;  // counts changes that may bring work: a new put, a raised level
  Byte created;  // home only: the shards that exist in this epoch
  Set seen, backlog;
  Member members[kMembers];
};

struct History {  // the states that a roll-back may restore, newest first
  Byte count;
  Shard shards[kSnapshots];
};

struct Call {  // the bytes of a call do not change before its answer
  Byte kind, id, epoch, run, seq, want, seeding, held, count;
  Byte moves[kMoves];
  Set ripe;  // the part of the log that was confirmed at least a horizon before this call was composed
  Byte new_id, parentless;
  Set held_set;
};

struct Reply {
  Byte kind;
  Set leases;
};

enum Joined : Byte { kNotJoined, kRegistered, kNoted };  // noted: home knows that the shard exists
enum Raised : Byte { kNotRaised, kRaised, kRaiseRetired };

struct Dialogue {  // a worker's dialogue with one shard
  Byte joined, id, seq, rejoins, count;
  Byte outbox[kMoves];
  Set log, ripe;
  Call call;
  Reply reply;
};

struct Wait {  // an ack that waits until its children are retired in other shards
  Byte parent;
  Set children;
};

struct Worker {
  Byte status, epoch, run, start_over;
  Set yielded, buffer, running, owned;  // owned: the part of `running` whose leases the worker still has
  Set known;       // the requests that were put before; the worker drops them if they are yielded again
  Byte waits;
  Wait waiting[kWaiting];
  Set parentless;  // parentless puts in other shards that may still be lost
  Set settled;     // the part of `parentless` that its shard cannot lose any more, while home can still lose the raise
  Byte level;      // the level of seeding that home has confirmed
  Byte raised;     // whether the level keeps home open, and whether a roll-back can no longer undo this (Raised)
  Byte cut;        // 1 + the unreachable shard; 0: the worker reaches all
  Byte gave_up;    // the worker has given up on the unreachable shard and takes no leases
  Byte stage;      // the stage of the double collect (ending.h); 0: none
  Byte versions[kShards];
  Dialogue with[kShards];

  void forget_collect() { stage = 0, memset(versions, 0, sizeof versions); }
};

struct Copy {
  Byte shard;
  Call call;
};

struct Budget {  // remaining faults; pause: exchanges that ask for no lease; mend: cuts that end
  Byte kill, fence, lose, delay, roll, flush, term, again, pause, cut, mend;
};

struct State {
  Shard shards[kShards];
  History history[kShards];
  Worker workers[kWorkers];
  Byte copies;
  Copy under_way[kCopies];
  Byte processed[kRequests];  // how often each request was processed in this run
  Byte epoch, run;            // the newest epoch and run
  Set promised;               // confirmed puts that no worker would yield again
  Byte told;                  // a worker has reported a loss in this run
  Budget left;
};

inline Set puts_in(const Byte* moves, int count) {
  Set found = 0;
  for (int i = 0; i < count; ++i)
    if (kind_of(moves[i]) == kPut) found |= only(request_of(moves[i]));
  return found;
}
inline Set puts_in(const Dialogue& d) { return puts_in(d.outbox, d.count); }
inline Set puts_in(const Call& call) { return puts_in(call.moves, call.count); }
inline Set puts_in_outboxes(const Worker& worker) {
  Set found = 0;
  for (const Dialogue& d : worker.with) found |= puts_in(d);
  return found;
}

inline bool is_cut_from(const Worker& worker, int k) { return worker.cut == k + 1; }

inline bool operator==(const State& a, const State& b) { return !memcmp(&a, &b, sizeof a); }
