"""One schedule: a simulated crawl with its faults and commands, completely determined by its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from random import Random
from typing import Any

from scrapy_dq.frontier import keys
from simulation import checks, commands, faults, virtual
from simulation.answers import Answers, Report
from simulation.checks import Identity, Violation
from simulation.crawler import Crawler
from simulation.disk import Disk
from simulation.network import NONE, Network
from simulation.plan import FAULTS_END_S, Plan, Strike
from simulation.product import size
from simulation.store import CRAWL, Server, Store
from simulation.virtual import BEGIN_S, Process
from simulation.visits import FEED, Visit

MAX_S = 200.0
"""Maximum duration of a schedule. The effects of most faults end after about three seconds."""
POLL_S = 0.2
MAX_EVENTS = 10_000
"""A number of moves that no schedule reaches. An outbox that keeps so many in memory needs no disk."""
MAX_STARTS = 100
"""If a schedule starts more processes, its crawl counts as endless. A page that kills its workers may cost 20
processes a run."""


class Schedule(Answers):
    """Two to five workers on one site, and their faults."""

    def __init__(self, plan: Plan, server: Server, trace: bool = False) -> None:
        super().__init__(plan.seed)
        self.plan = plan
        self.disk = Disk(self.world, used=plan.setup.memory_moves < MAX_EVENTS)
        self.setup = replace(plan.setup, spill_dir=self.disk.folder)
        size(plan.setup)
        self.store = Store(server, self.world, plan.setup.functions)
        self.network = Network(self.world, self.store, plan.rates, plan.setup.timeout_s)
        self.network.watch = self._ran
        self._tracing = trace
        if trace:
            self.network.trace = self._note
        self._fed: list[tuple[float, int]] = []
        self._messages = 0
        self.ends_lost: list[float] = []
        """Times at which only home was set back, to a time before the end of a run."""
        self.doubts: list[tuple[Crawler, Violation]] = []
        """Workers that closed with `finished` although pages were missing, each with the violation."""
        self.commands: Counter[str] = Counter()
        self.forgotten: set[int] = set()
        """Pages with a fingerprint that a user has cleared."""
        self._starting = 0
        self._again = plan.setup.again
        self._broken: Violation | None = None
        random = self.world.random
        self._looked_at = {random.randrange(2, 40) for _ in range(2)}  # few, because reading all keys is slow
        for number in range(plan.setup.workers):
            self.start_later(0.4, part=number % plan.setup.parts)
        for strike in plan.strikes:
            self._prepare(strike)
        for at_s, command in plan.commands:
            self.world.at(BEGIN_S + at_s, lambda command=command: commands.run(self, command))
        for number in range(plan.setup.fed):
            page = random.randrange(len(plan.pages))
            self.world.at(BEGIN_S + number * 0.3, lambda page=page: self._feed(page))
        self.world.at(BEGIN_S + random.uniform(0.0, FAULTS_END_S), lambda: checks.stored(self))
        self.world.at(BEGIN_S + FAULTS_END_S, self._end_faults)
        self.world.at(BEGIN_S + POLL_S, self._look)

    def run(self) -> Report:
        """Run the schedule to its end; raise Violation or Endless."""
        report = self.report
        try:
            self.world.run(BEGIN_S + MAX_S)
            if self._broken:
                raise self._broken
            checks.no_exception(self)
            checks.stored(self)
            checks.other_reports_loss(self)
            checks.extras(self)
            checks.pushed(self)
            checks.dead_letters(self)
            checks.repeats(self)
            checks.politeness(self)
            checks.runs(self)
            checks.keys_left(self)
        finally:
            for each in self.crawlers:
                each.close()
            self.disk.close()
            virtual.end()
        report.calls = self.network.calls
        report.simulated_s = self.world.now - BEGIN_S
        seen = Counter(visit.entry_id for visit in self.visits())
        report.repeats = sum(seen.values()) - len(seen)
        state = (self.world.random.getstate(), report.calls, self.world.now, sorted(seen))
        report.digest = sha256(repr(state).encode()).hexdigest()[:16]
        return report

    def from_start(self, of: Crawler) -> set[Identity]:
        """Return the pages that the start requests of all workers in the run of *of* lead to."""
        origin = "" if self.setup.filtered_start else "start"
        run = of.worker.epoch, of.worker.run
        if run not in of.runs:
            return set()  # this worker found its named run finished
        # Redis may have lost the other workers' joins. Then nothing in Redis shows their start requests.
        known = [each for each in self.crawlers if run in each.runs and not self.losses] or [of]
        # A worker that joins after this worker's last FINISHED answer opens the run again.
        known = [each for each in known if each.joined_at <= of.finished_at]
        starts = {page for each in known for page in each.starts}
        return checks.expected(self.plan.pages, tuple(starts), origin)

    def from_feed(self) -> set[Identity]:
        """Return the pages that all claimed start payloads lead to. Any run may crawl them."""
        waiting = [int(payload.partition(b".")[0]) for payload in self.unread()]
        fed = [page for _, page in self._fed]
        for page in waiting:
            if page in fed:
                fed.remove(page)
        return checks.expected(self.plan.pages, tuple(fed), "")

    def unread(self) -> list[bytes]:
        """Return the start payloads that no worker has received yet."""
        if not self.setup.streams:
            return self.store.run("LRANGE", FEED, 0, -1)  # type: ignore[no-any-return]
        groups = self.store.run("XINFO", "GROUPS", FEED) if self.store.run("EXISTS", FEED) else []
        last = groups[0][groups[0].index(b"last-delivered-id") + 1] if groups else b"0"
        return [fields[1] for _, fields in self.store.run("XRANGE", FEED, b"(" + last, "+")]

    def acknowledged(self) -> list[bytes]:
        """Return all messages that were read and are not pending, in the form of `Put.message`."""
        groups = self.store.run("XINFO", "GROUPS", FEED) if self.store.run("EXISTS", FEED) else []
        if not groups:
            return []
        group, last = groups[0][1], groups[0][groups[0].index(b"last-delivered-id") + 1]
        pending = {each[0] for each in self.store.run("XPENDING", FEED, group, "-", "+", 1000)}
        read = self.store.run("XRANGE", FEED, "-", last)
        return [FEED.encode() + b"\0" + number for number, _ in read if number not in pending]

    def feed_command(self, page: int) -> tuple[Any, ...]:
        """Return the command that feeds a page; a message's id is greater than all earlier ids."""
        payload = b"%d.0." % page
        self._messages += 1
        if self.setup.streams:
            return "XADD", FEED, f"{self._messages}-1", "page", payload
        return "RPUSH", FEED, payload

    def visits(self) -> Iterator[Visit]:
        """Return all processed pages."""
        return (visit for process in (*self.crawlers, *self.queues) for visit in process.visits)

    # The methods that faults and commands call.

    def struck(self, fault: str, details: str = "") -> None:
        """Record that a fault strikes now."""
        self.report.faults[fault] += 1
        self._note(f"{fault} {details}")

    def set_back(self, snapshot: Any, taken_at: float, shard: int | None = None) -> None:
        """Set Redis, or a shard's Redis, back to a snapshot of *taken_at*."""
        went_on = checks.gone_on(self)
        self.store.restore(snapshot, shard)
        self.lost(taken_at, shard)
        if shard == keys.HOME and not went_on and checks.gone_on(self):
            self.ends_lost.append(self.world.now)

    def lost(self, taken_at: float, shard: int | None = None) -> None:
        """Record that Redis, or a shard's Redis, only has its data of *taken_at*."""
        self.losses.append((taken_at, self.world.now))
        self._expect_anything()
        if not shard:
            self._fed = [each for each in self._fed if each[0] <= taken_at]

    def part_masters(self, shard: int, seconds: float, astray: dict[Crawler, float]) -> None:
        """Let a shard's former master answer some calls of these workers for a while."""
        self.store.former[shard] = self.store.snapshot(shard)
        self.network.astray |= {(of.process, shard): rate for of, rate in astray.items()}
        self.losses.append((self.world.now, self.world.now + seconds))

        def end() -> None:
            del self.store.former[shard]
            self.network.astray = {at: rate for at, rate in self.network.astray.items() if at[1] != shard}
            self.network.cut(shard=shard)
            self._expect_anything()

        self.world.at(self.world.now + seconds, end)

    def _expect_anything(self) -> None:
        self._note_epoch(self.store.run("HGET", keys.meta(CRAWL), "epoch"))
        names = [keys.prefix(keys.Shard(CRAWL, shard)) + "members" for shard in range(self.setup.shards)]
        members = [each for name in names for each in self.store.run("SMEMBERS", name)]
        self._seeding = {each.decode(): "" for each in members}  # after a loss, no level is checked
        for crawler in self.crawlers:
            crawler.redis_set_back()

    def replaced_at(self, epoch: str) -> float:
        """Return the time at which the frontier of *epoch* was replaced or lost; inf: it is still there."""
        since = float("inf")
        for at, each in reversed(self._epochs):
            if each == epoch.encode():
                break
            since = at
        return since

    def noted(self, process: str, event: str) -> None:
        """Add a line to the trace."""
        if self._tracing:
            self._note(f"{process} {event}")

    def start_later(self, within_s: float = 0.0, part: int = 0, *, again: bool = False) -> None:
        """Start a worker within *within_s* (0: a random time). With *again*, even in a finished crawl."""
        self._starting += 1
        within_s = within_s or self.world.random.choice((0.1, 0.4, 3 * self.setup.ttl_s))
        when = self.world.now + self.world.random.uniform(0.0, within_s)
        self.world.at(when, lambda: self._start(part, again))

    def _prepare(self, strike: Strike) -> None:
        strike_now = faults.BY_NAME_OVER_SHARDS[strike.fault]

        def at_call(process: Process) -> None:
            # Strike after the call's own event, because a process is killed between two events.
            found = self._of(process)
            self.world.at(self.world.now, lambda: happen(found if found and found.there else None))

        def happen(victim: Crawler | None) -> None:
            strike_now(self, random, victim if victim and victim.there else self._any(random))

        random = Random(strike.seed)
        if not strike.stage:
            self.world.at(BEGIN_S + strike.at_s, lambda: happen(None))
            return
        at, strikes = (strike.transition, strike.call, strike.stage), self.network.strikes
        before = strikes.get(at, lambda process: None)
        strikes[at] = lambda process: (before(process), at_call(process))  # type: ignore[func-returns-value]

    def _any(self, random: Random) -> Crawler | None:
        there = [each for each in self.crawlers if each.there]
        return random.choice(there) if there else None

    def _start(self, part: int, again: bool) -> None:
        self._starting -= 1
        if not again and self._is_over() and not checks.gone_on(self):
            return  # the worker would begin the next run
        name = f"worker{len(self.crawlers)}"
        if len(self.crawlers) >= MAX_STARTS:
            raise Violation(f"the crawl does not end, although faults have: {self._endings()}")
        self.noted(name, "starts")
        crawler = Crawler(self.network, self.setup, self.plan.pages, name, part, self._happened)
        self.crawlers.append(crawler)

    def _happened(self, process: str, event: str) -> None:
        self.noted(process, event)
        try:
            damaged = event == "ends: frontier_damaged" and self.setup.shards > 1
            if damaged or event.startswith("ends: not started: shard"):
                self._clear()
            crawlers = (each for each in self.crawlers if each.process.name == process)
            if event == "closes over budgets":
                checks.closes_over_budget(self, next(crawlers))
            if event == "is rolled back":
                checks.has_lost(self, next(crawlers))
            if event.startswith("ends: "):
                crawler = next(crawlers)
                checks.may_end(self, crawler)
            if event in ("ends: finished", "ends: unserved"):
                checks.nothing_lost(self, crawler)
                checks.same_frontier(self, crawler)
                if self._again:
                    self._again = False
                    for part in range(max(2, self.setup.parts)):
                        self.start_later(0.2, part % self.setup.parts, again=True)
            elif event.startswith("takes again"):
                raise Violation(f"{process} {event}, which is in progress there")
            elif event.startswith("takes"):
                checks.concurrency(self)
        except Violation as error:
            self._broken = self._broken or error  # raised here, it would only end a task of the worker
            self.world.over = True

    def _clear(self) -> None:
        """Run `scrapy dq clear --all`, as a worker advises when a shard or its data is gone."""
        self._note("clear")
        self.store.run("FLUSHALL")
        self.lost(0.0)

    def _feed(self, page: int) -> None:
        self.store.run(*self.feed_command(page))
        self._fed.append((self.world.now, page))

    def _note(self, event: str) -> None:
        self.report.trace.append(f"{self.world.now - BEGIN_S:9.4f} {event}")

    def _end_faults(self) -> None:
        self.network.rates = NONE

    def _look(self) -> None:
        self.world.at(self.world.now + POLL_S, self._look)
        if self.commands["pause"] or self.commands["drain"]:
            commands.resume_again(self)
        there = {each.process for each in chain(self.crawlers, self.others()) if each.there}
        if self._starting or there - self.network.cut_off:
            return
        if self.world.now < max(self.store.frozen.values(), default=0.0) + POLL_S:
            return  # after the freeze, Redis runs the calls that wait there
        # Repeat the command until a crawl has finished, as a user would.
        if there and self._is_over():
            self._note("mended")
            self.network.mend()
        elif self._is_over() and not checks.gone_on(self):
            self.world.over = True
        else:
            self.start_later(0.4, part=len(self.crawlers) % self.setup.parts)

    def _is_over(self) -> bool:
        return bool({"finished", "unserved"} & set(self._endings()))

    def _endings(self) -> list[str]:
        return [each.ending or "killed" for each in self.crawlers]
