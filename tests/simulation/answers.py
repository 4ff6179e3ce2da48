"""The answers of Redis in a schedule (one simulated crawl with faults), recorded and checked at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.messages import apart
from simulation import checks, checks_of_answers, virtual
from simulation.checks import Identity, Violation
from simulation.crawler import Crawler
from simulation.network import Network
from simulation.plan import Setup
from simulation.pusher import Pusher
from simulation.queue_user import QueueUser
from simulation.store import CRAWL, Store, shard_called
from simulation.virtual import Process
from simulation.visits import parts
from support.stored import _dead_letter as dead_letter

MAX_EXCHANGES = 2_000
"""If a schedule makes more exchanges than this for each shard, its crawl counts as endless. The limit leaves
room for a program that waits 60 s for an fsync because Redis's clock was set back."""
PUT, RELEASE = 0, 2
"""The kinds of a put and of a release in packed moves (endings.lua)."""


@dataclass
class Report:
    """The figures and the trace of a schedule."""

    seed: int
    calls: int = 0
    exchanges: int = 0
    simulated_s: float = 0.0
    repeats: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    digest: str = ""
    """A digest that is the same in each run of a seed."""


def unpacked(moves: bytes) -> Any:
    """Return the moves of an exchange as lua/moves/endings.lua reads them."""
    return msgpack.unpackb(moves, raw=True)


class Answers:
    """The facts about a schedule that the calls of its processes and Redis's answers prove."""

    setup: Setup
    store: Store
    network: Network
    _looked_at: set[int]
    """The exchanges, by number, after which all keys are read."""

    def __init__(self, seed: int) -> None:
        self.report = Report(seed)
        self.world = virtual.begin(seed)
        self.made_of: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """For each message, the ids of the entries that were put for it; empty key: no message."""
        self.dead: set[Identity] = set()
        self.buried: dict[bytes, int] = {}
        """The pages of dead letters, by entry id."""
        self.unserved: set[bytes] = set()
        """Ids of dead letters that no worker could serve."""
        self.fenced: set[str] = set()
        """Ids of workers declared dead."""
        self.taken_for_dead: Counter[bytes] = Counter()
        """For each entry, how many ids of its lease holders were declared dead wrongly: the holder's process
        lived, had left, or had died under another id."""
        self.losses: list[tuple[float, float]] = []
        """For each time that Redis was set back: the time of the snapshot, and the time of the set-back."""
        self.granted_elsewhere: set[bytes] = set()
        """Entries leased by a shard other than home."""
        self._epochs: list[tuple[float, bytes | None]] = []
        """The time of each change to another frontier or to no frontier, and the epoch from then on."""
        self.late_members: set[str] = set()
        """Ids that a late call registered: a second time, or after the worker had left or got another id."""
        self.crawlers: list[Crawler] = []
        self.pushers: list[Pusher] = []
        self.queues: list[QueueUser] = []
        self.put: set[Identity] = set()
        """The pages put by any applied exchange."""
        self._applied: dict[str, tuple[int, list[bytes]]] = {}
        """For each worker, the last applied exchange: its number and its leases."""
        self._ever_applied: set[tuple[str, int]] = set()
        """All applied exchanges, by worker and number."""
        self.put_again: Counter[bytes] = Counter()
        """How often a late copy of an exchange has put an entry again, by entry id."""
        self.granted: defaultdict[tuple[str, bytes], list[float]] = defaultdict(list)
        """The times at which each process got the lease of an entry."""
        self._seeding: dict[str, str] = {}
        """The seeding level of each member."""
        self._sent: dict[tuple[bytes, int], tuple[Any, ...]] = {}
        """The arguments of each exchange, by worker and number."""

    def others(self) -> Iterator[Pusher | QueueUser]:
        """Return the processes that are members without a spider."""
        return chain(self.pushers, self.queues)

    def _ran(self, process: Process, transition: str, args: tuple[Any, ...], outcome: Any) -> None:
        if transition == "exchange":
            self.report.exchanges += 1
            if self.report.exchanges > MAX_EXCHANGES * self.setup.shards:
                raise Violation("the crawl does not end: it makes too many exchanges")
            names = args[2 + args[1] :]
            if self._sent.setdefault((names[0], names[3]), names) != names:
                raise Violation(f"exchange {names[3]} of {names[0].decode()} is repeated with other contents")
            shard, of = shard_called("evalsha", args), self._of(process)
            if isinstance(outcome, list) and of:
                of.exchanged(names[0].decode(), int(names[3]), outcome[0], of_run=len(outcome) > 2)
            if isinstance(outcome, list) and len(outcome) > 2:  # otherwise it was refused
                worker_id, number = names[0].decode(), names[3]
                for record in outcome[4]:  # rank(8) flags(1) partition 0 turn(8) id(12) payload
                    entry_id = record[9:].partition(b"\0")[2][8:20]
                    self.granted[process.name, entry_id].append(self.world.now)
                    if shard:
                        self.granted_elsewhere.add(entry_id)
                last, leases = self._applied.get(worker_id, (0, []))
                # After a loss, Redis may answer an earlier exchange again.
                if number > last or (number < last and not self.losses):
                    if (worker_id, number) in self._ever_applied and not self.losses:
                        self._note_put_again(names[10])
                    self._ever_applied.add((worker_id, number))
                    moves = unpacked(names[10])
                    self.put.update(parts(move[6])[::2] for move in moves if move[0] == PUT)
                    for position, move in enumerate(moves):
                        if move[0] == PUT and b"%d" % position not in outcome[2].split(b","):
                            self.made_of[apart(move[6])[0]].add(move[1])
                    if of:
                        of.gave_back({move[1] for move in moves if move[0] == RELEASE})
                    self._applied[worker_id] = number, outcome[4]
                    self._seeding[worker_id] = str(names[5])
                    checks_of_answers.applied(self, worker_id, last, number, outcome, shard)
                    if self.setup.lacking and outcome[3][3]:
                        before = set(self.buried)
                        self._note_dead_letters()
                        checks_of_answers.unserved(self, set(self.buried) - before, shard)
                    checks_of_answers.within_budget(self, outcome)
                    checks_of_answers.within_domain_budgets(self, outcome[4], shard)
                    checks_of_answers.over_budget(self, outcome, shard)
                    checks_of_answers.leased(
                        self, outcome, shard, with_order=self.report.exchanges in self._looked_at
                    )
                elif (
                    number == last
                    and not self.losses
                    and not (
                        # The repeated answer lacks leases that were drained in between.
                        outcome[4] == leases or (worker_id in self.fenced and set(outcome[4]) < set(leases))
                    )
                ):
                    raise Violation(
                        f"exchange {number} of {worker_id} brings other leases when it is repeated"
                    )
        elif transition in ("join", "rejoin"):
            self._registered(process, transition, args[2 + args[1] :], outcome, shard_called("evalsha", args))
        elif not isinstance(outcome, list) or outcome[0] != b"OK":
            return
        elif transition == "fence":
            worker_id = args[2 + args[1]].decode()
            self._note_fenced(worker_id)
            if not shard_called("evalsha", args):
                checks_of_answers.start_noted(self, worker_id, self._seeding.get(worker_id, "0"), outcome[1])
            self._seeding[worker_id] = "0"
        elif transition == "leave":
            worker_id = args[2 + args[1]].decode()
            shard = shard_called("evalsha", args)
            checks_of_answers.left(self, shard, last=bool(outcome[2]))
            began = args[2 + args[1] + 6]
            if not shard and began:  # otherwise it could not join another shard, so no start() began
                checks_of_answers.start_noted(self, worker_id, self._seeding.get(worker_id, "0"), outcome[4])
            self._removed(worker_id)
        elif transition == "drain":
            worker_id = args[2 + args[1]].decode()
            if not outcome[3]:
                self._removed(worker_id)
            checks_of_answers.drained(self, worker_id)
            self.world.at(self.world.now + 0.2, lambda: checks.stored(self))
            if outcome[2]:
                self._note_dead_letters()

    def _registered(
        self, process: Process, transition: str, names: tuple[Any, ...], outcome: Any, shard: int
    ) -> None:
        if not isinstance(outcome, list):
            return  # Redis refused the call
        of, new = self._of(process), names[0].decode()
        if of and (process, shard) in self.network.astray:
            of.redis_set_back()  # a repeat of the call may reach the other master
        if outcome[0] == b"OK":
            self._note_id(process, new, names[2 if transition == "rejoin" else 0].decode())
            # A repeat changes nothing while the worker is a member, fenced or not. Later, a late copy of the
            # call registers the worker again, and then a late copy of its first exchange is not a repeat.
            if new not in self._seeding:
                self._applied.pop(new, None)
            self._seeding.setdefault(new, str(names[7]) if transition == "rejoin" else "1")
            if of:
                of.registered_at.append(self.world.now)
        if transition == "join" and outcome[0] == b"OK" and not shard:
            self._note_epoch(outcome[1])
        elif transition == "rejoin" and outcome[0] == b"OK":
            self._removed(names[2].decode())
            if outcome[1] < names[4]:
                raise Violation(f"{new} of run {names[4]} takes part in run {outcome[1]}")
            if of:
                of.rejoins(new, outcome[3], finished=False)
        elif transition == "rejoin" and outcome[0] == b"FINISHED" and of:
            of.rejoins(new, outcome[1], finished=True)

    def _note_put_again(self, moves: bytes) -> None:
        # Late copies of a join and an exchange came after their worker had left. The tokens of its puts are
        # gone. See docs/reliability.md, "A call that arrives after its process has left".
        self.put_again.update(move[1] for move in unpacked(moves) if move[0] == PUT)

    def _note_epoch(self, epoch: bytes | None) -> None:
        if not self._epochs or self._epochs[-1][1] != epoch:
            self._epochs.append((self.world.now, epoch))

    def _removed(self, worker_id: str) -> None:
        self._seeding.pop(worker_id, None)

    def _of(self, process: Process) -> Crawler | None:
        return next((each for each in self.crawlers if each.process is process), None)

    def _note_id(self, process: Process, worker_id: str, old_id: str) -> None:
        for each in chain(self.crawlers, self.others()):
            if each.process is process:
                removed = worker_id in each.ids and worker_id not in self._seeding
                late_join = worker_id == old_id and each.has_joined(worker_id)
                if removed or late_join or not each.there or old_id not in each.worker_ids:
                    self.late_members.add(worker_id)
                each.ids.add(worker_id)

    def _note_fenced(self, worker_id: str) -> None:
        if worker_id not in self.fenced:
            for each in self.crawlers:
                if worker_id in each.ids and (each.process.alive or each.ids & self.fenced):
                    name = each.process.name
                    self.taken_for_dead.update(entry_id for by, entry_id in self.granted if by == name)
            self.fenced.add(worker_id)

    def _note_dead_letters(self) -> None:
        # Read them now, because the next run deletes them.
        names = [keys.prefix(keys.Shard(CRAWL, shard)) + "dead" for shard in range(self.setup.shards)]
        records = [part for name in names for part in self.store.run("HGETALL", name)]
        for entry_id, record in zip(records[::2], records[1::2], strict=True):
            page, _, origin = parts(dead_letter(record)[2])
            self.dead.add((page, origin))
            self.buried[entry_id] = page
