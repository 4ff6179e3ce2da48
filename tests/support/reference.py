"""The frontier as its protocol states it, in plain Python: what the Lua is held against."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import (
    PRIORITY_LIMIT,
    Ack,
    Admission,
    Bury,
    Census,
    Fail,
    Joined,
    Lease,
    Move,
    Order,
    Parentless,
    Put,
    Receipt,
    Rejoined,
    Release,
    Status,
)


@dataclass
class Entry:
    """A stored request; entries are served in the order of their places."""

    place: tuple[int, ...]
    payload: bytes
    attempts: int = 0
    suspect: bool = False
    """Its worker died with it: it waits, and runs, in quarantine."""


@dataclass
class Worker:
    """A registered worker, and the answer that a repeat of its last exchange gets."""

    identity: dict[str, Any]
    last_seq: int = 0
    seeding: int = 1
    fenced: bool = False
    beats: int = 0
    leases: dict[bytes, Entry] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    granted: tuple[bytes, ...] = ()

    @property
    def suspects(self) -> list[bytes]:
        """The one suspect that it may hold."""
        return [entry_id for entry_id, entry in self.leases.items() if entry.suspect]


class ReferenceFrontier:
    """One crawl; a method answers what the method of `Frontier` that has its name answers."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch: str | None = None
        self.turn = 0
        self._clear_run()
        self.run, self.phase, self.done, self.dead, self.failed = 0, "absent", 0, {}, []
        self.crawl = Identity("", "", "")

    def join(self, worker_id: str, identity: dict[str, Any], new_epoch: str, crawl: Identity) -> Joined:
        resumed = self.epoch is not None and (self.phase == "open" or worker_id in self.members)
        if not resumed and self.phase == "finished":
            if crawl.run_name and crawl.run_name == self.crawl.run_name:
                args = (self.epoch, self.run, True, self.census(), crawl.spider_args)
                return Joined(Status.FINISHED, *args)
            self._next_run(crawl.keep_seen)
            self.crawl = crawl
        elif not resumed:
            self.epoch, self.phase, self.crawl = new_epoch, "open", crawl
        self.members.setdefault(worker_id, Worker(identity))
        return Joined(Status.OK, self.epoch, self.run, resumed, self.census(), self.crawl.spider_args)

    def exchange(
        self, worker_id: str, epoch: str, run: int, seq: int, want: int, seeding: int, held: int,
        moves: Sequence[Move],
    ) -> Receipt:  # fmt: skip
        if stale := self._stale(epoch, run):
            return Receipt(stale)
        me = self.members.get(worker_id)
        if me and seq == me.last_seq:
            return self._receipt(me, self.census())
        if not me or seq != me.last_seq + 1:
            return Receipt(Status.RESYNC)
        if self.phase == "finished" and not any(isinstance(move, Put) for move in moves):
            return Receipt(Status.FINISHED, False, (), self.census())
        if me.fenced or held != len(me.leases):
            return Receipt(Status.RESYNC)
        moved = [self._apply(me, worker_id, move) for move in moves]
        me.dropped = tuple(i for i, move in enumerate(moves) if isinstance(move, Put) and not moved[i])
        me.last_seq, me.seeding = seq, seeding
        me.granted = self._grant(me, min(want, ceil(len(self.backlog) / len(self.members))))
        if self.backlog:
            return self._receipt(me, self.census())
        if not any(worker.leases or worker.seeding for worker in self.members.values()):
            self.phase = "finished"
        return self._receipt(me, self.census(self.count_seeding()))

    def rejoin(
        self, new_id: str, identity: dict[str, Any], old_id: str, epoch: str, run: int,
        held: Collection[bytes], parentless: Parentless, keep_seen: bool,
    ) -> Rejoined:  # fmt: skip
        if self.epoch != epoch:
            return Rejoined(Status.LOST)
        if new_id in self.members:
            return Rejoined(Status.OK, self.run, frozenset(self.members[new_id].leases))
        reopens = parentless == Parentless.WAITING or (parentless == Parentless.LOGGED and self.members)
        if self.run > run or (self.phase == "finished" and self.run == run and not reopens):
            return Rejoined(Status.FINISHED)
        if self.phase == "finished" and self.run < run:
            self._next_run(keep_seen)
        self.phase = "open"
        me = self.members[new_id] = Worker(identity)
        old = self.members.get(old_id)
        if old and not old.fenced:
            me.leases = {i: old.leases.pop(i) for i in held if i in old.leases}
            self.leave(old_id, epoch, self.run, keep_seen=True)
        return Rejoined(Status.OK, self.run, frozenset(me.leases))

    def fence(self, worker_id: str, epoch: str, run: int) -> str:
        if stale := self._stale(epoch, run):
            return stale.value
        if worker_id not in self.members:
            return "ABSENT"
        self.members[worker_id].fenced, self.members[worker_id].seeding = True, 0
        return "OK"

    def drain(
        self, worker_id: str, epoch: str, run: int, chosen: Collection[bytes], max_attempts: int
    ) -> tuple[int, int, int]:
        """As `Frontier.drain` when it takes the *chosen* leases; which ones is its own affair."""
        worker = self.members.get(worker_id)
        if self._stale(epoch, run) or not worker or not worker.fenced:
            return 0, 0, 0
        buried = 0
        for entry_id in chosen:
            entry = worker.leases.pop(entry_id)
            entry.attempts += entry.suspect
            entry.suspect = True
            if entry.attempts >= max_attempts:
                self.dead[entry_id] = (worker_id, entry.attempts, entry.payload)
                buried += 1
            else:
                self.backlog[entry_id] = entry
        if not worker.leases:
            del self.members[worker_id]
        return len(chosen) - buried, buried, len(worker.leases)

    def leave(self, worker_id: str, epoch: str, run: int, keep_seen: bool) -> tuple[int, bool]:
        if self._stale(epoch, run):
            return 0, False
        worker = self.members.pop(worker_id, Worker({}))
        self.backlog |= worker.leases
        if self.phase == "finished" and not self.members:
            self._clear_run(keep_seen)
        return len(worker.leases), not self.members

    def beats(self, worker_id: str, epoch: str) -> dict[str, int]:
        if self.epoch != epoch:
            return {}
        if worker_id in self.members:
            self.members[worker_id].beats += 1
        return {member: worker.beats for member, worker in self.members.items()}

    def flush(self, dead: Collection[str]) -> tuple[set[str], Census]:
        """As `Frontier.flush`, but for all the workers that stand in the way."""
        if living := set(self.members) - set(dead):
            return living, Census()
        gone = self.census()
        vars(self).update(vars(ReferenceFrontier(self.order)))
        return set(), Census(gone.waiting, gone.in_flight, seen=gone.seen)

    def serving(self) -> list[bytes]:
        """Return the ids of the backlog, first to be leased first."""
        return sorted(self.backlog, key=lambda entry_id: self.backlog[entry_id].place)

    def census(self, seeding: int = 0) -> Census:
        in_flight = sum(len(worker.leases) for worker in self.members.values())
        counts = (len(self.backlog), in_flight, self.done, len(self.dead))
        seen, workers = len(self.tokens[Admission.SEEN]), len(self.members)
        return Census(*counts, seen, workers, seeding, len(self.failed))

    def count_seeding(self) -> int:
        return sum(worker.seeding == 1 for worker in self.members.values())

    def _stale(self, epoch: str, run: int) -> Status | None:
        if self.epoch != epoch:
            return Status.LOST
        return Status.RESYNC if self.run < run else Status.FINISHED if self.run > run else None

    def _clear_run(self, keep_seen: bool = False) -> None:
        kept = self.tokens[Admission.SEEN] if keep_seen else set()
        self.tokens = {Admission.SEEN: kept, Admission.SEED: set(), Admission.ID: set()}
        self.backlog: dict[bytes, Entry] = {}
        self.members: dict[str, Worker] = {}

    def _next_run(self, keep_seen: bool) -> None:
        self._clear_run(keep_seen)
        self.run, self.phase, self.done = self.run + 1, "open", 0
        self.dead, self.failed = {}, []

    def _apply(self, me: Worker, worker_id: str, move: Move) -> bool:
        if isinstance(move, Put):
            if move.token in self.tokens[move.admission]:
                return False
            self.tokens[move.admission].add(move.token)
            self.turn += 1
            self.backlog[move.entry_id] = Entry(self._place(move), move.payload)
            self.phase = "open"
            return True
        entry = me.leases.pop(move.entry_id, None)
        if entry is None:
            return False
        if isinstance(move, Ack):
            self.done += 1
        elif isinstance(move, Release):
            self.backlog[move.entry_id] = entry
        elif isinstance(move, Bury):
            self.dead[move.entry_id] = (worker_id, entry.attempts, entry.payload)
        elif isinstance(move, Fail):
            self.failed.append((move.entry_id, move.label, move.reason, worker_id, entry.payload))
        return True

    def _place(self, put: Put) -> tuple[int, ...]:
        rank = (-max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, put.priority)), put.start)
        if self.order in (Order.FIFO, Order.LIFO):
            rank = ()
        newest_first = self.order is Order.LIFO or (self.order is Order.PRIORITY_LIFO and not put.start)
        return (*rank, -self.turn if newest_first else self.turn)

    def _grant(self, me: Worker, want: int) -> tuple[bytes, ...]:
        granted: list[bytes] = []
        for entry_id in self.serving():
            refused = self.backlog[entry_id].suspect and me.suspects
            if len(granted) < want and not refused:
                me.leases[entry_id] = self.backlog.pop(entry_id)
                granted.append(entry_id)
        return tuple(granted)

    def _receipt(self, me: Worker, census: Census) -> Receipt:
        status = Status.FINISHED if self.phase == "finished" else Status.OK
        still = ((i, me.leases[i]) for i in me.granted if i in me.leases)
        leases = tuple(Lease(i, entry.attempts, entry.payload) for i, entry in still)
        return Receipt(status, True, me.dropped, census, leases)
