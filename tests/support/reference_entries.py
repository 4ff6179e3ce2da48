"""A part of the reference frontier in plain Python: puts, and the ends of entries."""

from __future__ import annotations

from scrapy_dq.frontier.model import PRIORITY_LIMIT, Admission, Order, StartQueue
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Fail, Move, Put, Release
from support.reference_partitions import Declined, Entry, Partitions, Worker, units

KEEP_FAILED = 5
"""Number of failed requests that the frontiers of these tests keep."""


class Entries(Partitions):
    """The entries of a run that wait, are delayed or declined, have failed, or are dead letters."""

    delayed: dict[bytes, tuple[int, Put]]
    decliners: dict[bytes, Declined]

    def __init__(self, order: Order, wall_s: float) -> None:
        super().__init__()
        self.order = order
        self.wall_s = wall_s
        """The time in seconds since 1970, by a clock that is never changed."""
        self.turn = 0
        self.due_first: list[bytes] = []
        """Ids of delayed entries as the real frontier orders them, because it does not round due times."""
        self.tokens: dict[Admission, set[bytes]] = {by: set() for by in Admission}

    def _count_from_zero(self) -> None:
        self.done = self.count_of_failed = self.never_sent = self.unserved = 0
        self.dead: dict[bytes, tuple[str, int, bytes]] = {}
        self.failed: list[tuple[bytes, str, str, str, bytes]] = []
        """The newest failed requests. Older failed requests are not kept."""
        self.ended: dict[bytes, Entry] = {}
        """Failed requests and dead letters, for a retry."""

    def _put(self, put: Put) -> bool:
        if put.token in self.tokens[put.admission]:
            return False
        self.tokens[put.admission].add(put.token)
        self._open()
        due = self.clock + (units(max(put.due_at, put.not_before_s - self.wall_s)) or 0)
        if put.reason:
            self.dead[put.entry_id] = ("", 0, put.payload)
            self.ended[put.entry_id] = Entry(self._place(put), put.payload, put.partition)
        elif due > self.clock:
            self.turn += 1
            self.delayed[put.entry_id] = (due, put)
        else:
            self._append(put)
        return True

    def would_duplicate(self, put: Put) -> bool:
        """Return whether the entry of *put* exists without its token, so that Redis would store it twice."""
        leased = any(put.entry_id in worker.leases for worker in self.members.values())
        somewhere = leased or any(
            put.entry_id in place
            for place in (self.backlog, self.declined, self.delayed, self.dead, self.ended)
        )
        return somewhere and put.token not in self.tokens[put.admission]

    def _append(self, put: Put) -> None:
        self.turn += 1
        entry = Entry(self._place(put), put.payload, put.partition)
        rank = entry.place[:-1]
        waiting = (e for e in self.backlog.values() if e.partition == put.partition and not e.back)
        if all(other.place[:-1] != rank for other in waiting):
            self.touched.add(put.partition)
        self.backlog[put.entry_id] = entry

    def _promote(self) -> None:
        due = [entry_id for entry_id, (time, _) in self.delayed.items() if time <= self.clock]
        for entry_id in sorted(due, key=lambda i: (self.delayed[i][0], self.due_first.index(i))):
            self._append(self.delayed.pop(entry_id)[1])

    def _settle(self, me: Worker, worker_id: str, move: Move) -> None:
        if move.entry_id not in me.leases:
            return
        entry = self._end_lease(me, move.entry_id)
        me.done += isinstance(move, (Ack, Fail, Again))
        if isinstance(move, (Ack, Fail, Again, Bury)):
            self.decliners.pop(move.entry_id, None)
        if isinstance(move, (Ack, Fail, Again)) and not move.never_sent:
            self.count_spent(entry.partition)
        elif isinstance(move, (Ack, Fail, Again)):
            self.never_sent += 1
        if isinstance(move, Ack):
            self.done += 1
        elif isinstance(move, Again):
            self.done += 1
            self.turn += 1
            due = self.clock + max(0, units(move.due_at) or 0)
            self.delayed[move.next_id] = (due, _put_of(move, entry.partition))
        elif isinstance(move, Release):
            self._release(move.entry_id, entry)
        elif isinstance(move, Decline):
            by = self.decliners.setdefault(move.entry_id, Declined(worker_id, move.fingerprint))
            by.workers.append(me.lasting_id)
            self._wait_for_another(move.entry_id, entry)
        elif isinstance(move, Bury):
            self.dead[move.entry_id] = (worker_id, entry.attempts, entry.payload)
            self.ended[move.entry_id] = entry
        elif isinstance(move, Fail):
            record = (move.entry_id, move.label, move.reason, worker_id, entry.payload)
            self.failed = [*self.failed, record][-KEEP_FAILED:]
            self.count_of_failed += 1
            self.ended[move.entry_id] = entry

    def _end_lease(self, worker: Worker, entry_id: bytes) -> Entry:
        entry = worker.leases.pop(entry_id)
        self.lease_ended(entry.partition, entry_id)
        return entry

    def _release(self, entry_id: bytes, entry: Entry) -> None:
        again = self._wait_for_another if entry_id in self.decliners else self._come_back
        again(entry_id, entry)

    def _wait_for_another(self, entry_id: bytes, entry: Entry) -> None:
        self.turn += 1
        entry.back = True
        self.declined[entry_id] = (self.turn, entry)
        self.touched.add(entry.partition)

    def _abandon(self) -> bool:
        """Bury all declined entries. If a worker was not offered all of them yet, only return False."""
        last = max((number for number, _ in self.declined.values()), default=0)
        if any(worker.offered < last for worker in self.members.values()):
            return False
        for entry_id, (_, entry) in self.declined.items():
            worker_id = self.decliners[entry_id].worker_id
            self.dead[entry_id] = (worker_id, entry.attempts, entry.payload)
            self.ended[entry_id] = entry
        self.unserved += len(self.declined)
        self.declined = {}
        return True

    def _unmark_unserved(self) -> None:
        for entry_id, by in self.decliners.items():
            if entry_id in self.dead:
                self.tokens[Admission.SEEN].discard(by.fingerprint)

    def _come_back(self, entry_id: bytes, entry: Entry) -> None:
        entry.back = True
        self.backlog[entry_id] = entry
        self.touched.add(entry.partition)

    def _place(self, put: Put) -> tuple[int, ...]:
        rank = (-max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, put.priority)), put.start)
        if self.order in (Order.FIFO, Order.LIFO):
            rank = ()
        newest_first = self.order is Order.LIFO or (self.order is Order.PRIORITY_LIFO and put.start != 1)
        if rank and put.start == StartQueue.LIFO:
            newest_first = True
        return (*rank, -self.turn if newest_first else self.turn)


def _put_of(move: Again, partition: bytes) -> Put:
    """Return a put that makes the same entry as *move*, but without a delay."""
    by = move.next_id, Admission.ID, move.next_id
    return Put(*by, move.priority, move.start, move.payload, partition=partition)
