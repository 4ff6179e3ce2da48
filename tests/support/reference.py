"""The reference for the Lua code: a frontier in plain Python that follows the same protocol."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from scrapy_dq.frontier.admin.control import Command
from scrapy_dq.frontier.answers import Joined, Receipt, Rejoined
from scrapy_dq.frontier.model import (
    Admission,
    Block,
    Census,
    Commands,
    Hold,
    Identity,
    Lease,
    Order,
    Parentless,
    Seeding,
    Sent,
    Status,
    Terms,
)
from scrapy_dq.frontier.moves import Move, Put
from support.reference_entries import Entries
from support.reference_partitions import UNIT_S, Declined, Entry, Worker, units

NO_TERMS = Terms()


class ReferenceFrontier(Entries):
    """One crawl. Each method gives the same answer as the method of `Frontier` with the same name.

    In puts, notes and leases, times are relative to now: they are given by a clock that is always 0.
    """

    def __init__(self, order: Order, wall_s: float = 0.0) -> None:
        super().__init__(order, wall_s)
        self.epoch: str | None = None
        self._clear_run()
        self.run, self.phase = 0, "absent"
        self._count_from_zero()
        self.crawl = Identity("", "", "")
        self.commands = Commands()
        self.seen_for_retry = False
        """Whether `seen` is kept only for a retry or a returning worker. If so, the next run deletes it."""
        self.cleared = False
        self.crawled = ""
        """The first worker with a start() that has joined this run, or "" if none has joined."""
        self.starts: dict[str, bool] = {}
        """For the name of each start(): True if this start() is complete, False if it was interrupted."""

    def join(self, worker_id: str, identity: dict[str, Any], new_epoch: str, crawl: Identity) -> Joined:
        resumed = self.epoch is not None and (self.phase == "open" or worker_id in self.members)
        if not resumed and self.phase == "finished":
            # The second condition is for a delayed copy of a join whose worker has already crawled and left.
            if (crawl.run_name and crawl.run_name == self.crawl.run_name) or worker_id == self.crawled:
                args = (self.epoch, self.run, True, self.census(), crawl.spider_args)
                return Joined(
                    Status.FINISHED, *args, commands=self.commands, crawled=True, run_name=crawl.run_name
                )
            if crawl.keep_seen and not self.seen_for_retry:
                self._unmark_unserved()
            self._next_run(crawl.keep_seen)
            self.crawl = crawl
        elif not resumed:
            self.epoch, self.phase, self.crawl = new_epoch, "open", crawl
        if resumed and not self.crawl.run_name:
            self.crawl = replace(self.crawl, run_name=crawl.run_name)
        limits_before = self.settings if resumed and self.settings != crawl.limits else None
        if limits_before or not resumed:
            self.set_limits(crawl.limits)
        if worker_id in self.members:
            self.members[worker_id].beats += 1
        self.members.setdefault(worker_id, Worker(identity, starts=crawl.starts, lasting_id=worker_id))
        crawled = self.crawled not in ("", worker_id)
        self.crawled = self.crawled or (worker_id if crawl.starts else "")
        known = (self.epoch, self.run, resumed, self.census(), self.crawl.spider_args)
        return Joined(
            Status.OK,
            *known,
            limits_before,
            commands=self.commands,
            crawled=crawled,
            run_name=self.crawl.run_name,
        )

    def exchange(
        self, worker_id: str, epoch: str, run: int, seq: int, want: int, seeding: int, held: int,
        moves: Sequence[Move], terms: Terms = NO_TERMS,
    ) -> Receipt:  # fmt: skip
        if stale := self._stale(epoch, run, worker_id):
            return Receipt(stale)
        me = self.members.get(worker_id)
        if me and seq == me.last_seq:
            return self._receipt(me, self.census())
        if not me or seq != me.last_seq + 1:
            return Receipt(Status.RESYNC)
        if self.phase == "finished" and not any(isinstance(move, Put) for move in moves):
            me.last_seq, me.dropped, me.granted = seq, (), ()
            return Receipt(Status.FINISHED, False, (), self.census(), commands=self.commands)
        if me.fenced or held != len(me.leases):
            return Receipt(Status.RESYNC)
        new = [isinstance(move, Put) and self._put(move) for move in moves]
        me.dropped = tuple(i for i, move in enumerate(moves) if isinstance(move, Put) and not new[i])
        for note in terms.notes:
            if isinstance(note, Sent) and note.entry_id in me.leases:
                age = None if note.at is None else -(units(note.at) or 0)
                self.sent(note.partition, note.entry_id, age)
            elif isinstance(note, Block):
                self.block(note.partition, units(note.until) or 0)
        for move in moves:
            if not isinstance(move, Put):
                self._settle(me, worker_id, move)
        ahead = units(terms.ahead_s) or 0
        self._promote()
        self.wake(ahead)
        self.classify_touched(ahead)
        if me.seeding != seeding and seeding in (0, 3) and me.starts:
            self.starts[me.starts] = True
        me.last_seq, me.seeding = seq, seeding
        if self.commands.hold:
            want = 0
        if terms.max_pages is not None:
            in_flight = sum(len(worker.leases) for worker in self.members.values())
            want = max(0, min(want, terms.max_pages - self.census().pages - in_flight))
        waiting = len(self.backlog) + len(self.declined)
        self.lease(me, min(want, ceil(waiting / len(self.members))), ahead, terms)
        if self.backlog:
            return self._receipt(me, self.census(), terms)
        busy = self.delayed or self.count_seeding() or any(w.leases for w in self.members.values())
        if self.declined and (busy or self.commands.hold or not self._abandon()):
            return self._receipt(me, self.census(self.count_seeding()), terms)
        if self.delayed or any(w.leases or w.seeding for w in self.members.values()):
            return self._receipt(me, self.census(self.count_seeding()), terms)
        if not self.count_incomplete():
            self.phase = "finished"
        return self._receipt(me, self.census(self.count_seeding(), self.count_incomplete()), terms)

    def rejoin(
        self, new_id: str, identity: dict[str, Any], old_id: str, epoch: str, run: int,
        held: Collection[bytes], parentless: Parentless, seeding: int, former_ids: tuple[str, ...],
        crawl: Identity,
    ) -> Rejoined:  # fmt: skip
        if self.epoch != epoch:
            return Rejoined(Status.LOST)
        if new_id in self.members:
            me = self.members[new_id]
            me.beats += 1
            return Rejoined(Status.OK, self.run, frozenset(me.leases), _known(me.came_from))
        old_ids = (old_id, *former_ids)
        known = next((each for each in old_ids if each in (*self.members, *self.absent)), old_id)
        last_seq = self._last_seq(known, new_id)
        if known != old_id:
            last_seq = -2 - (last_seq if known == old_ids[-1] else 2**52)
        old_id = known
        member = self.members.get(old_id)
        registered = member is not None and not member.fenced
        again = seeding == Seeding.AGAIN
        stays = (registered or again or parentless != Parentless.NONE) and not self.cleared
        over = self.run > run and old_id not in self.members
        if over:
            return Rejoined(Status.FINISHED, last_seq=2**52)
        if self.phase == "finished" and self.run >= run and not stays:
            return Rejoined(Status.FINISHED, last_seq=_known(last_seq))
        if self.run < run:
            keep_seen = bool(crawl.keep_seen and self.crawl.keep_seen)
            if self.phase == "finished":
                self._next_run(keep_seen)
            else:
                self._forget_what_was_known(keep_seen)
                self._free_saturated()
            if self.settings != crawl.limits:
                self.set_limits(crawl.limits)
            self.run, self.crawl, self.spent = run, crawl, {}
        old = self.members.get(old_id)
        done = old.done if old else 0
        me = self.members[new_id] = Worker(identity, seeding=seeding, done=done, starts=crawl.starts)
        me.lasting_id, me.offered = (old.lasting_id, old.offered) if old else (new_id, 0)
        me.came_from = last_seq
        for each in (old_id, new_id, f"before {new_id}"):
            self.absent.pop(each, None)
        if old and not old.fenced:
            me.leases = {i: old.leases.pop(i) for i in held if i in old.leases}
            self._remove(old_id)
        elif old and not old.leases:
            del self.members[old_id]
        if again and crawl.starts:
            self._open()
        return Rejoined(Status.OK, self.run, frozenset(me.leases), _known(me.came_from))

    def _last_seq(self, old_id: str, new_id: str) -> int:
        old = self.members.get(old_id)
        return old.last_seq if old else self.absent.get(old_id, self.absent.get(f"before {new_id}", -1))

    def fence(self, worker_id: str, epoch: str, run: int, gone: bool = False) -> tuple[str, str]:
        if stale := self._stale(epoch, run):
            return stale.value, ""
        if worker_id not in self.members:
            return "ABSENT", ""
        worker = self.members[worker_id]
        broken = self._start_broken(worker)
        if not gone:
            # The worker may repeat its rejoin if it has made no exchange under this id.
            self.absent[worker_id] = worker.last_seq
            if worker.last_seq == 0 and worker.came_from is not None:
                self.absent[f"before {worker_id}"] = worker.came_from
        worker.fenced, worker.seeding = True, 0
        return "OK", broken

    def drain(
        self, worker_id: str, epoch: str, run: int, chosen: Collection[bytes], max_attempts: int
    ) -> tuple[int, int, int]:
        """Drain the leases in *chosen*. (`Frontier.drain` may choose any leases of the worker.)"""
        worker = self.members.get(worker_id)
        if self._stale(epoch, run) or not worker or not worker.fenced:
            return 0, 0, 0
        buried = 0
        for entry_id in chosen:
            entry = self._end_lease(worker, entry_id)
            entry.attempts += entry.suspect
            entry.suspect = entry.suspect or self._is_suspect(entry_id, worker_id)
            if entry.attempts >= max_attempts:
                self.decliners.pop(entry_id, None)
                self.dead[entry_id] = (worker_id, entry.attempts, entry.payload)
                self.ended[entry_id] = entry
                buried += 1
            elif entry_id in self.decliners:
                self._wait_for_another(entry_id, entry)
            else:
                self._come_back(entry_id, entry)
        if not worker.leases:
            del self.members[worker_id]
        self.classify_touched(0)
        return len(chosen) - buried, buried, len(worker.leases)

    def _is_suspect(self, entry_id: bytes, worker_id: str) -> bool:
        if worker_id not in self.absent:
            return True
        by, self.accused[entry_id] = self.accused.get(entry_id), worker_id
        return by not in (None, worker_id) and by in self.absent

    def leave(self, worker_id: str, epoch: str, run: int, keep_seen: bool) -> tuple[int, bool]:
        if self._stale(epoch, run):
            return 0, False
        self._start_broken(self.members.get(worker_id, Worker({})))
        released = self._remove(worker_id)
        if self.phase == "finished" and not self.members:
            kept = bool(self.dead or self.failed or self.absent)
            self._clear_run(keep_seen or kept, keep_admitted=kept)
            self.seen_for_retry, self.cleared = kept and not keep_seen, not kept
        return released, not self.members

    def _remove(self, worker_id: str) -> int:
        worker = self.members.get(worker_id, Worker({}))
        released = list(worker.leases)
        for entry_id in released:
            self._release(entry_id, self._end_lease(worker, entry_id))
        self.members.pop(worker_id, None)
        self.classify_touched(0)
        return len(released)

    def _start_broken(self, worker: Worker) -> str:
        name = worker.starts
        if not name or self.phase == "finished" or worker.seeding not in (1, 2) or self.starts.get(name):
            return ""
        self.starts[name] = False
        return name

    def beats(self, worker_id: str, epoch: str) -> dict[str, int]:
        if self.epoch != epoch:
            return {}
        if worker_id in self.members:
            self.members[worker_id].beats += 1
        return {member: worker.beats for member, worker in self.members.items()}

    def flush(self, dead: Collection[str]) -> tuple[set[str], Census]:
        """Do the same as `Frontier.flush`, but return all workers that prevent the flush."""
        if living := set(self.members) - set(dead):
            return living, Census()
        gone = self.census()
        vars(self).update(vars(ReferenceFrontier(self.order, self.wall_s)))
        return set(), Census(gone.waiting, gone.in_flight, seen=gone.seen)

    def limit(
        self, partition: bytes, delay_s: float | None, concurrency: int | None, block_s: float | None,
        budget: int | None = None,
    ) -> tuple[int, int, int, int, int]:  # fmt: skip
        if (delay_s, concurrency, budget) != (None, None, None):
            old = self.commands
            self.commands = replace(old, count=old.count + 1, limit_changes=old.limit_changes + 1)
        return super().limit(partition, delay_s, concurrency, block_s, budget)

    def steer(self, action: Command) -> Hold | None:
        if self.epoch is None:
            return None
        old = self.commands
        if action is Command.STOP:
            self.commands = replace(old, count=old.count + 1, stops=old.stops + 1)
        elif action is Command.COMPLETE:
            incomplete = self.count_incomplete()
            self.commands, self.starts = replace(old, count=old.count + 1), {}
            if incomplete and not (self.members or self.backlog or self.declined or self.delayed):
                self.phase = "finished"
        else:
            hold = {Command.PAUSE: Hold.PAUSED, Command.DRAIN: Hold.DRAINING, Command.RESUME: Hold.NONE}[
                action
            ]
            self.commands = replace(old, count=old.count + 1, hold=hold)
        return self.commands.hold

    def unfinished(self) -> set[bytes]:
        """Return the ids of all entries that are neither done nor kept for a retry."""
        return (
            set(self.backlog)
            | set(self.declined)
            | set(self.delayed)
            | {i for w in self.members.values() for i in w.leases}
        )

    def retry(self, chosen: Collection[bytes]) -> None:
        """Move failed requests or dead letters, all of one kind, back to their places."""
        for entry_id in chosen:
            if self.dead.pop(entry_id, None) and self.decliners.pop(entry_id, None):
                self.unserved -= 1
            kept = [record for record in self.failed if record[0] != entry_id]
            self.count_of_failed -= len(self.failed) - len(kept)
            self.failed = kept
            entry = self.ended.pop(entry_id)
            entry.attempts, entry.suspect = 0, False
            self._come_back(entry_id, entry)
        if chosen:
            if self.phase == "finished":  # a hold ends with the run
                self.commands = replace(self.commands, hold=Hold.NONE)
            self._open()
            self.turn += 1
            self.commands = replace(self.commands, count=self.commands.count + 1)
        self.classify_touched(0)

    def serving(self) -> list[bytes]:
        """Return the ids of the backlog in the order of leasing."""
        return sorted(self.backlog, key=lambda entry_id: self.backlog[entry_id].place)

    def census(self, seeding: int = 0, incomplete: int = 0) -> Census:
        in_flight = sum(len(worker.leases) for worker in self.members.values())
        counts = (len(self.backlog) + len(self.declined), in_flight, self.done, len(self.dead))
        seen, workers = len(self.tokens[Admission.SEEN]), len(self.members)
        more = (self.count_of_failed, len(self.delayed), 0, incomplete)
        apart = {"never_sent": self.never_sent, "declined": len(self.declined), "unserved": self.unserved}
        return Census(*counts, seen, workers, seeding, *more, **apart)

    def count_incomplete(self) -> int:
        return sum(not done for done in self.starts.values())

    def count_seeding(self) -> int:
        return sum(worker.seeding == 1 for worker in self.members.values())

    def _stale(self, epoch: str, run: int, member: str = "") -> Status | None:
        if self.epoch != epoch:
            return Status.LOST
        if self.run > run and member in self.members:
            return Status.RESYNC
        return Status.RESYNC if self.run < run else Status.FINISHED if self.run > run else None

    def _clear_run(self, keep_seen: bool = False, *, keep_admitted: bool = False) -> None:
        kept = {Admission.SEEN: keep_seen, Admission.SEED: keep_admitted, Admission.ID: keep_admitted}
        self.tokens = {by: self.tokens[by] if keep else set() for by, keep in kept.items()}
        self.delayed: dict[bytes, tuple[int, Put]] = {}
        self.accused: dict[bytes, str] = {}
        """For each entry: the last worker whose lease of the entry was taken away."""
        if not keep_admitted:
            self.absent: dict[str, int] = {}
            """Workers that were declared dead and may come back."""
            self.decliners: dict[bytes, Declined] = {}
        clock, spent = self.clock if keep_seen else 0, self.spent if keep_admitted else {}
        self.clear_partitions()
        self.clock, self.spent = clock, spent

    def _next_run(self, keep_seen: bool) -> None:
        self._clear_run(keep_seen and not self.seen_for_retry)
        self.seen_for_retry = self.cleared = False
        self.starts, self.crawled = {}, ""
        self.run, self.phase = self.run + 1, "open"
        self._count_from_zero()
        self.limited = bool(self.delay or self.concurrency or self.own or self.budget)
        self.commands = replace(self.commands, hold=Hold.NONE)

    def _forget_what_was_known(self, keep_seen: bool) -> None:
        if not keep_seen or self.seen_for_retry:
            self.tokens[Admission.SEEN] = set()
        self.tokens[Admission.SEED] = set()
        self.starts = {name: done for name, done in self.starts.items() if not done}
        self.commands = replace(
            self.commands, count=self.commands.count + 1, forgets=self.commands.forgets + 1
        )

    def _open(self) -> None:
        if self.phase == "finished":
            self.phase, self.seen_for_retry = "open", False

    def _receipt(self, me: Worker, census: Census, terms: Terms = NO_TERMS) -> Receipt:
        status = Status.FINISHED if self.phase == "finished" else Status.OK
        leases = tuple(
            Lease(*self._leased(i, entry), self._wait_s(at), was_declined=i in self.decliners)
            for i, at in me.granted
            if (entry := me.leases.get(i))
        )
        due = self.next_due([time for time, _ in self.delayed.values()])
        soon = self.clock + (units(terms.ahead_s) or 0)
        blocked = tuple(p for p in terms.here if self.blocked.get(p, 0) > soon)
        next_due_s = None if due is None else due * UNIT_S
        return Receipt(status, True, me.dropped, census, leases, next_due_s, blocked, commands=self.commands)

    def _leased(self, entry_id: bytes, entry: Entry) -> tuple[bytes, int, bytes, bytes]:
        return entry_id, entry.attempts, entry.payload, entry.partition

    def _wait_s(self, at: int | None) -> float | None:
        return None if at is None else (at - self.clock) * UNIT_S


def _known(last_seq: int | None) -> int | None:
    return None if last_seq == -1 else last_seq
