"""A part of the reference frontier in plain Python: partitions, with their turns and limits.

Times are whole units of a clock that moves only when a test moves it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from scrapy_dq.frontier.model import Limits, Terms

UNIT_S = 1_000.0
"""The number of seconds in a unit, which is much longer than a test lasts."""
SERVED = ("rotation", "suspects")
MAX_TRIED = 500
"""Maximum number of partitions that one exchange examines without getting a lease from them."""
OwnLimits = tuple[int | None, int | None, int | None]


def units(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds / UNIT_S)


@dataclass
class Entry:
    """A stored request. A partition's entries are served in the order of their places."""

    place: tuple[int, ...]
    payload: bytes
    partition: bytes = b""
    attempts: int = 0
    suspect: bool = False
    """Whether a worker died with this entry. Such an entry waits in the quarantine and runs as a suspect."""
    back: bool = False
    """Whether the entry has returned to the backlog, after a lease or by a retry."""


@dataclass
class Declined:
    """The workers that have declined an entry, because their code cannot serve it."""

    worker_id: str
    """The id that the first of these workers had when it declined the entry."""
    fingerprint: bytes
    workers: list[str] = field(default_factory=list)
    """The `Worker.lasting_id` of each of these workers."""


@dataclass
class Worker:
    """A registered worker, with the data for the answer to a repeat of its last exchange."""

    identity: dict[str, Any]
    last_seq: int = 0
    seeding: int = 1
    fenced: bool = False
    beats: int = 0
    leases: dict[bytes, Entry] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    granted: tuple[tuple[bytes, int | None], ...] = ()
    """The leases that the last exchange granted, each with its time of sending, or None without a wait."""
    done: int = 0
    starts: str = ""
    came_from: int | None = None
    """The number of the last exchange under the id before the rejoin, or None without a rejoin.

    -1 means that no former id is known. Below -1, only an older id is known (see `ReferenceFrontier.rejoin`).
    """

    lasting_id: str = ""
    """An id that a rejoin keeps if the worker's old id is still registered."""
    offered: int = 0
    """The number of the last declined entry that Redis has offered to this worker."""

    @property
    def suspects(self) -> list[bytes]:
        """The suspects that the worker holds, at most one."""
        return [entry_id for entry_id, entry in self.leases.items() if entry.suspect]


class Partitions:
    """The waiting entries by partition, and the rules for leasing them."""

    def __init__(self) -> None:
        self.limited, self.delay, self.concurrency, self.budget = False, 0, 0, 0
        self.own: dict[bytes, OwnLimits] = {}
        self.settings = Limits()
        self.clear_partitions()

    def clear_partitions(self) -> None:
        self.clock = self.turn_of_rotation = 0
        self.backlog: dict[bytes, Entry] = {}
        self.declined: dict[bytes, tuple[int, Entry]] = {}
        """For each declined entry: its number and the entry. Lower numbers come first."""
        self.members: dict[str, Worker] = {}
        self.location: dict[bytes, tuple[str, int]] = {}
        """For each partition with waiting entries: its state and a number.

        In `rotation` and `suspects`, the number is the turn; in `resting`, the end of the rest; otherwise 0.
        """
        self.spent: dict[bytes, int] = {}
        """For each partition with a budget: the number of requests that this run has spent."""
        self.unsent: dict[bytes, bytes] = {}
        self.earliest: dict[bytes, int] = {}
        self.blocked: dict[bytes, int] = {}
        self.touched: set[bytes] = set()

    # Limits

    def set_limits(self, limits: Limits) -> None:
        self.settings = limits
        self.delay, self.concurrency = units(limits.delay_s) or 0, limits.concurrency
        self.budget = limits.budget
        self.own = {
            p.encode(): (*map(units, limits.own.get(p, (None, None))[:1]), limits.own.get(p, (None, None))[1],
                         limits.own_budgets.get(p))
            for p in {*limits.own, *limits.own_budgets}
        }  # fmt: skip
        if self.delay or self.concurrency or self.own or self.budget:
            self.limited = True
        elif not any(worker.leases for worker in self.members.values()):
            self.limited = False
        self._free_saturated()

    def limit(
        self,
        partition: bytes,
        delay_s: float | None,
        concurrency: int | None,
        block_s: float | None,
        budget: int | None = None,
    ) -> tuple[int, int, int, int, int]:
        """Do the same as the package's function `limit`, and return the answer in units."""
        if (delay_s, concurrency, block_s, budget) == (None, None, None, None):  # only show the limits
            return self._in_force(partition)
        self.limited |= (delay_s, concurrency, budget) != (None, None, None)
        before = self.own.pop(partition, (None, None, None))
        given = (units(delay_s), concurrency, budget)
        pairs = zip(before, given, strict=True)
        own = tuple(old if new is None else None if new < 0 else new for old, new in pairs)
        if own != (None, None, None):
            self.own[partition] = own  # type: ignore[assignment]
        if block_s is not None:
            self.blocked.pop(partition, None)
        rest = self.earliest.get(partition, 0)
        if rest > self.clock:
            self._set_earliest(partition, min(rest, self.clock + self._limits_of(partition)[0]))
        if block_s is not None and block_s > 0:
            self.block(partition, units(block_s) or 0)
        self.touched = {partition}
        self.classify_touched(0)
        return self._in_force(partition)

    def _in_force(self, partition: bytes) -> tuple[int, int, int, int, int]:
        delay, most, budget = self._limits_of(partition)
        blocked = max(0, self.blocked.get(partition, 0) - self.clock)
        return delay, most, blocked, budget, self._spent_by(partition)

    def _limits_of(self, partition: bytes) -> tuple[int, int, int]:
        if not self.limited:
            return 0, 0, 0
        own = self.own.get(partition, (None, None, None))
        defaults = self.delay, self.concurrency, self.budget
        delay, most, budget = (each if own is None else own for own, each in zip(own, defaults, strict=True))
        return delay, most, budget

    def _spent_by(self, partition: bytes) -> int:
        return self.spent.get(partition, 0)

    def count_spent(self, partition: bytes) -> None:
        """If the partition has a budget, count one more request that is done or has failed."""
        if self._limits_of(partition)[2]:
            self.spent[partition] = self.spent.get(partition, 0) + 1

    def _free_saturated(self) -> None:
        # The next exchanges examine these partitions first. Partitions that are still saturated are marked
        # again.
        for partition, (name, _) in self.location.items():
            if name == "saturated":
                self.location[partition] = ("rotation", 0)

    # Reports about partitions

    def sent(self, partition: bytes, entry_id: bytes, age: int | None) -> None:
        """Record that the request of a lease was sent *age* units ago. None means that it is never sent."""
        if self.unsent.get(partition) == entry_id:
            del self.unsent[partition]
            wait = 0 if age is None else self._limits_of(partition)[0] - age
            self._set_earliest(partition, self.clock + wait)
        self.touched.add(partition)

    def block(self, partition: bytes, wait: int) -> None:
        until = self.clock + wait
        if until > self.blocked.get(partition, 0):
            self.blocked[partition] = until
            self._set_earliest(partition, max(until, self.earliest.get(partition, 0)))
            self.touched.add(partition)

    def lease_ended(self, partition: bytes, entry_id: bytes) -> None:
        if self.limited:
            self.sent(partition, entry_id, 0)

    def _set_earliest(self, partition: bytes, time: int) -> None:
        self.earliest[partition] = max(time, self.blocked.get(partition, 0))

    # The state of a partition

    def classify_touched(self, ahead: int) -> None:
        for partition in sorted(self.touched):
            self._classify(partition, ahead)
        self.touched = set()

    def wake(self, ahead: int) -> None:
        """Mark the partitions whose rest ends within *ahead* as touched."""
        for partition, (name, time) in self.location.items():
            if name == "resting" and time <= self.clock + ahead:
                self.touched.add(partition)

    def next_due(self, times: list[int]) -> int | None:
        """Return the time until the first rest ends or the first of *times* comes."""
        times += [time for name, time in self.location.values() if name == "resting"]
        return max(0, min(times) - self.clock) if times else None

    def _classify(self, partition: bytes, ahead: int, served: bool = False) -> None:
        waiting = [entry for entry in self.backlog.values() if entry.partition == partition]
        earliest = self.earliest.get(partition, 0)
        before, turn = self.location.pop(partition, ("", 0))
        if not waiting:
            return
        if self._is_saturated(partition):
            self.location[partition] = ("saturated", 0)
        elif earliest > self.clock + ahead:
            self.location[partition] = ("resting", earliest)
        else:
            name = "suspects" if all(entry.suspect for entry in waiting) else "rotation"
            if served or name != before:
                self.turn_of_rotation += 1
                turn = self.turn_of_rotation
            self.location[partition] = (name, turn)

    def _is_saturated(self, partition: bytes) -> bool:
        if self.limited and partition in self.unsent:
            return True
        _, most, budget = self._limits_of(partition)
        busy = self._busy(partition)
        return 0 < most <= busy or 0 < budget <= self._spent_by(partition) + busy

    def _busy(self, partition: bytes) -> int:
        leases = (entry for worker in self.members.values() for entry in worker.leases.values())
        return sum(entry.partition == partition for entry in leases)

    # Leasing

    def lease(self, me: Worker, want: int, ahead: int, terms: Terms) -> None:
        """Grant up to *want* leases in rounds. In each round, each partition gives a few entries.

        If an examined partition gives no lease, another partition is examined, up to MAX_TRIED partitions.
        """
        here, me.granted = terms.here, ()
        taken: Counter[bytes] = Counter()
        want -= self._offer(me, min(want, 1), ahead, terms, taken)
        room: dict[bytes, int] = {}
        tried, unleasable = 0, 1
        while want > 0 and unleasable and tried < MAX_TRIED:
            unleasable = 0
            waiting = self._in_turn(me, want + len(here), terms)
            room |= {p: here[p][1] if p in here else terms.most for p in waiting if p not in room}
            gained = True
            while gained:
                gained = False
                for i, partition in enumerate(waiting):
                    fair = min(room[partition], ceil(want / (len(waiting) - i)))
                    got = self._serve_politely(me, partition, fair, ahead) if fair else 0
                    unleasable += fair > 0 and not got
                    room[partition] = 0 if got < fair else room[partition] - got
                    want -= got
                    gained |= got > 0
            tried += unleasable
        self._offer(me, want, ahead, terms, taken)

    def _offer(self, me: Worker, want: int, ahead: int, terms: Terms, taken: Counter[bytes]) -> int:
        """Grant entries that other workers have declined. Each worker is offered such an entry once.

        Args:
            taken: the number of granted leases in this exchange, by partition.
        """
        before = taken.total()
        for entry_id, (number, entry) in list(self.declined.items()) if want > 0 else ():
            if number <= me.offered:
                continue
            of, (delay, _, budget) = entry.partition, self._limits_of(entry.partition)
            if 0 < budget <= self._spent_by(of):
                del self.declined[entry_id]
                self.backlog[entry_id] = entry
                self._classify(of, ahead)
            elif me.lasting_id not in self.decliners[entry_id].workers:
                start = max(self.clock, self.earliest.get(of, 0))
                room = (terms.here[of][1] if of in terms.here else terms.most) - taken[of]
                full = taken.total() - before >= want or room <= 0 or start > self.clock + ahead
                if full or self._is_saturated(of) or (entry.suspect and me.suspects):
                    break
                del self.declined[entry_id]
                me.leases[entry_id] = entry
                me.granted += ((entry_id, start if delay or start > self.clock else None),)
                if delay:
                    self.unsent[of] = entry_id
                    self._set_earliest(of, start + delay)
                self._classify(of, ahead)
                taken[of] += 1
            me.offered = number
        return taken.total() - before

    def _in_turn(self, me: Worker, count: int, terms: Terms) -> list[bytes]:
        """Return the partitions to examine: first those without leases of *me*, then the others."""
        turns = {n: sorted((t, p) for p, (name, t) in self.location.items() if name == n) for n in SERVED}
        heads = turns["rotation"][:count]
        if not me.suspects:
            heads = sorted(heads + turns["suspects"][:1])
        names = [partition for _, partition in heads]
        others = sorted((p for p in names if p in terms.here), key=lambda p: terms.here[p][0])
        return [p for p in names if p not in terms.here] + [p for p in others if terms.here[p][1] > 0]

    def _serve_politely(self, me: Worker, partition: bytes, count: int, ahead: int) -> int:
        if self._is_saturated(partition):
            self._classify(partition, ahead)
            return 0
        delay, most, budget = self._limits_of(partition)
        start = max(self.clock, self.earliest.get(partition, 0))
        if start > self.clock + ahead:
            count = 0
        if most:
            count = min(count, most - self._busy(partition))
        if budget:
            count = min(count, budget - self._spent_by(partition) - self._busy(partition))
        if delay:
            count = min(count, 1 + ahead // delay)
        got = self._best(me, partition, count)
        for i, entry_id in enumerate(got):
            me.leases[entry_id] = self.backlog.pop(entry_id)
            timed = delay or start > self.clock
            me.granted += ((entry_id, start + i * delay if timed else None),)
        if got and delay:
            self.unsent[partition] = got[-1]
            self._set_earliest(partition, start + len(got) * delay)
        self._classify(partition, ahead, served=True)
        return len(got)

    def _best(self, me: Worker, partition: bytes, count: int) -> list[bytes]:
        """Return a partition's first *count* entries that *me* may lease. *me* may hold only one suspect."""
        best: list[bytes] = []
        passed = bool(me.suspects)
        # If a put becomes a dead letter at once, it gets the same place as the previous put. After a retry,
        # the entry of the dead letter comes second.
        turn = {i: (entry.place, entry.back, entry.suspect, i) for i, entry in self.backlog.items()}
        for entry_id in sorted(self.backlog, key=turn.__getitem__):
            entry = self.backlog[entry_id]
            if entry.partition == partition and len(best) < count and not (entry.suspect and passed):
                best.append(entry_id)
                passed |= entry.suspect
        return best
