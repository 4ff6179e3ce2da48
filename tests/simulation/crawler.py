"""A simulated `scrapy crawl`: the real worker with timed pages instead of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b, sha1
from typing import TYPE_CHECKING
from uuid import UUID

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    Admission,
    Commands,
    Identity,
    Lease,
    Limits,
    StartKeys,
    Status,
)
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.scheduling.admission import entry_ids
from scrapy_dq.sharding.make import worker_of
from simulation.answered import Answered
from simulation.network import Client, HeartbeatClient, Network
from simulation.site import Page
from simulation.store import CRAWL
from simulation.virtual import Process
from simulation.visits import FED_MARK, FEED, Visit, parts

if TYPE_CHECKING:
    from simulation.plan import Setup

GRACE_S = 2.0
ENGINE_S = 5.0
"""Scrapy's engine looks for work at least this often."""


class Crawler(Answered):
    """One process; `ending` is "" while it runs, and stays empty if it is killed."""

    def __init__(
        self, network: Network, setup: Setup, site: list[Page], name: str, part: int,
        watch: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        super().__init__(network.world)
        self._network = network
        self._setup = setup
        self._site = site
        self.part = part
        self.number = int(name.removeprefix("worker"))
        self.starts = setup.starts[part :: setup.parts]
        self._watch = watch
        self._stopping = ""
        self.process = Process(network.world, name)
        self.ending = ""
        self.ended_at = float("inf")
        self.gave_up = False
        """The worker has not joined, or has not left, in time."""
        self.first_run: tuple[str, int] | None = None
        self.joined_at = float("inf")
        self.spill_lost = False
        """The worker could not read back moves from its disk, and some of them had no parent."""
        self.extra: tuple[int, str] | None = None
        """The extra request of this worker."""
        self.decided_at = float("inf")
        """The time at which the worker began to close."""
        self.visits: list[Visit] = []
        self.killer = b""
        """The entry that killed the worker."""
        self.running: dict[bytes, Lease] = {}
        """Leases in download or in their callbacks."""
        self.downloading: dict[bytes, bytes] = {}
        """The partition of each lease in download."""
        self.sends: list[tuple[float, bytes, int]] = []
        """For each sent request: the time, the partition and the run."""
        self._taken_at: dict[bytes, float] = {}
        self._taken_by: dict[bytes, frozenset[str]] = {}
        self._entry_ids = entry_ids()
        self._sent: dict[bytes, int] = {}
        """Fingerprints that the worker does not put again, with the references of their puts."""
        self.max_pages = setup.max_pages_at(self._world.now)
        self._reason = "finished"
        self._look_due = False
        self._done = asyncio.Event()
        self._start: asyncio.Task[None] | None = None
        start_keys = StartKeys("stream" if setup.streams else "list", (FEED,), FED_MARK)
        frontiers = [
            Frontier(
                Client(network, self.process), CRAWL, setup.order, seen=setup.seen, shard=shard,
                start_keys=start_keys if setup.fed and not shard else None,
            )
            for shard in range(setup.shards)
        ]  # fmt: skip
        self.worker = worker_of(
            frontiers,
            identity_of(setup, part, setup.budget_at(self._world.now)),
            WorkerOptions(
                ttl_s=setup.ttl_s, rollback_horizon_s=setup.horizon_s,
                max_attempts=setup.max_attempts, spill_dir=setup.spill_dir, max_pages=self.max_pages,
            ),
            self,
            connect=lambda shard: HeartbeatClient(network, self.process),
            capacity=lambda: 0 if self._stopping else setup.capacity,
        )  # fmt: skip
        loop = self.process.loop
        self._world.at(self._world.now, lambda: loop.create_task(self._main()), self.process.main)

    @property
    def there(self) -> bool:
        """Whether the process runs: it has not ended and was not killed."""
        return self.process.alive and not self.ending

    def has_joined(self, worker_id: str) -> bool:
        """Tell whether a join with this id was answered. If not, a late copy may still register it."""
        return any(each.id == worker_id and each.protocol.epoch for each in self.worker.parts)

    @property
    def worker_ids(self) -> set[str]:
        """The ids with which the worker considers itself a member."""
        return {each.id for each in self.worker.parts}

    @property
    def _over(self) -> bool:
        return bool(self._stopping) or self.worker.lost or self.worker.over

    def stop(self, reason: str) -> None:
        """Ask the worker to end, as SIGTERM does; it gives unfinished leases back."""
        self._stopping = self._stopping or reason
        if self._start is not None:
            self._start.cancel()
        self._wake()

    def cut_off(self) -> None:
        if not self._stopping:
            self.stop("cut_off")

    def close(self) -> None:
        """Remove the worker's files at the end of the schedule."""
        for each in self.worker.parts:
            each.protocol.outbox.clear()

    def serves(self, page: int) -> bool:
        """Tell whether this worker's code can serve a page."""
        return self._setup.serves(self.number, page)

    def later(self, do: Callable[[], None]) -> None:
        """Call *do* at the next moment at which the process runs."""
        self._world.at(self._world.now, do, self.process.main)

    async def _main(self) -> None:
        worker = self.worker
        try:
            joined = await worker.start(UUID(bytes=self._world.random.randbytes(16), version=4).hex)
        except Exception as error:
            self.gave_up = True
            self._end(f"not started: {error}")
            return
        if joined.status is not Status.FINISHED:
            self._entered()
            self.first_run, self.joined_at = (joined.epoch, joined.run), self._world.now
            if self._setup.fed:
                worker.listen(True)
                wait_s = max(0.0, self._setup.fed_until_s - self._world.now)
                self.process.loop.call_later(wait_s, worker.listen, False)
            self._start = asyncio.create_task(self._yield_start())
            self._wake()
            self.process.loop.call_later(ENGINE_S, self._beat)
            if self._setup.extras:
                self.process.loop.call_later(self._world.random.uniform(0.0, 0.8), self._add)
            await self._done.wait()
            self._start.cancel()
            self.downloading.clear()
            for entry_id in list(self.running):
                del self.running[entry_id]
                worker.release(entry_id)
        deadline = self._world.now + GRACE_S
        await worker.stop(GRACE_S)
        gave_up_shard = any(each.membership.gave_up for each in worker.parts)
        self.gave_up = self._world.now >= deadline or gave_up_shard
        self._end("frontier_lost" if worker.lost else self._reason)

    def _end(self, ending: str) -> None:
        self.ending = ending
        self.ended_at = self._world.now
        self._watch(self.process.name, f"ends: {ending}")

    def _reason_now(self) -> str:
        """Return the scheduler's reason to close the spider."""
        if self.worker.lost:
            return "frontier_lost"
        if self._stopping:
            return self._stopping
        return "run_over" if self.worker.over and self.worker.leftover_puts else self.worker.ending

    async def _yield_start(self) -> None:
        for page in self.starts:
            await asyncio.sleep(self._world.random.choice((0.0, 0.0, 0.05, 0.3)))
            self._put_start(page)
        self.worker.seeded()
        self._wake()

    def _put_start(self, page: int) -> None:
        filtered = self._setup.filtered_start
        payload = b"%d.0.%s" % (page, b"" if filtered else b"start")
        admission = Admission.SEEN if filtered else Admission.SEED
        self.put(page, payload, admission, sha1(payload).digest(), next(self._entry_ids))

    def _add(self) -> None:
        if self._done.is_set():
            return
        page = self._world.random.randrange(len(self._site))
        entry_id = next(self._entry_ids)
        origin = self.process.name
        payload = b"%d.0.%s" % (page, origin.encode())
        if self.put(page, payload, Admission.ID, entry_id, entry_id):
            self.extra = (page, origin)
            self._wake()

    # The methods of a Scrapy engine.

    def _beat(self) -> None:
        if not (self.ending or self._done.is_set()):
            self._wake()
            self.process.loop.call_later(ENGINE_S, self._beat)

    def _wake(self) -> None:
        if not self._look_due:
            self._look_due = True
            self.process.loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        worker = self.worker
        if self._done.is_set():
            return  # a closing engine takes no requests, and keeps its reason
        if self._over or not (worker.pending or self.running):
            self._reason, self.decided_at = self._reason_now(), self._world.now
            self._done.set()
            return
        while len(self.running) < self._setup.capacity and (lease := worker.take()) is not None:
            if not (lease.payload.startswith(FED_MARK) or self.serves(parts(lease.payload)[0])):
                self._watch(self.process.name, f"declines {lease.payload!r}")
                worker.decline(lease.entry_id, "no code")
                continue
            again = " again" if lease.entry_id in self.running else ""
            self._watch(self.process.name, f"takes{again} {lease.payload!r}")
            self.running[lease.entry_id] = lease
            self.downloading[lease.entry_id] = lease.partition
            self._taken_at[lease.entry_id] = self._world.now
            self._taken_by[lease.entry_id] = frozenset(self.worker_ids)
            if not self._never_sent(lease):
                self.sends.append((self._world.now, lease.partition, worker.run))
                worker.sent(lease.entry_id)
            seconds = self._site[parts(lease.payload)[0]].seconds
            self.process.loop.call_later(seconds, self._downloaded, lease)

    def _never_sent(self, lease: Lease) -> bool:
        fed = lease.payload.startswith(FED_MARK)
        return not fed and self._site[parts(lease.payload)[0]].never_sent

    def _downloaded(self, lease: Lease) -> None:
        self.downloading.pop(lease.entry_id, None)
        if lease.entry_id not in self.running:
            return  # the lease was given back
        number, attempt, origin = parts(lease.payload)
        page = self._site[number]
        if self._never_sent(lease):
            self.worker.never_sent(lease.entry_id)
        self.worker.downloaded(lease.entry_id)
        if lease.payload.startswith(FED_MARK):
            self._put_child(lease, number, 0, filtered=True, delay_s=0.0, ordinal=0)
            del self.running[lease.entry_id]
            self.worker.ack(lease.entry_id)
        elif page.kills:
            self.killer = lease.entry_id
            self._watch(self.process.name, f"is killed by page {number}")
            self.process.kill()
            return
        elif attempt < page.tries:
            if attempt >= page.retries:
                self.worker.block(lease.partition, self._setup.retry_after_s)
            self._put_child(lease, number, attempt + 1, filtered=False, delay_s=0.0, ordinal=0)
            self._settle(lease, number, attempt, origin, page)
        else:
            self._yield(lease, number, attempt, origin, page, 0)
        self._wake()

    def _yield(self, lease: Lease, number: int, attempt: int, origin: str, page: Page, ordinal: int) -> None:
        if lease.entry_id not in self.running:
            return  # the process is ending
        for index, link in enumerate(page.links[ordinal:], ordinal):
            if page.pause_s and index > ordinal:
                rest = (lease, number, attempt, origin, page, index)
                self.process.loop.call_later(page.pause_s, self._yield, *rest)
                return
            self._put_child(lease, link.page, 0, link.filtered, link.delay_s, index)
        if page.pause_s and ordinal < len(page.links):
            rest = (lease, number, attempt, origin, page, len(page.links))
            self.process.loop.call_later(page.pause_s, self._yield, *rest)
            return
        self._settle(lease, number, attempt, origin, page)
        self._wake()

    def _settle(self, lease: Lease, number: int, attempt: int, origin: str, page: Page) -> None:
        worker = self.worker
        del self.running[lease.entry_id]
        # An unfiltered request has no revisits: it runs at each visit of its parent page.
        revisits = 0 if "-" in origin else self._setup.revisits
        visit = Visit(
            number, attempt, self.process.name, (worker.epoch, worker.run), worker.id,
            self._taken_at.pop(lease.entry_id), self._world.now, lease.entry_id,
            origin, attempt >= page.tries + revisits,
        )  # fmt: skip
        self.visits.append(visit)
        if self.worker_ids == self._taken_by.pop(lease.entry_id):
            self._unconfirmed.append(visit)  # otherwise a rejoin may have cost the lease
        if visit.last and page.fails:
            worker.fail(lease.entry_id, "it raised", "label")
        elif not visit.last and attempt >= page.tries:
            payload = b"%d.%d.%s" % (number, attempt + 1, origin.encode())
            wait_s = self._world.random.choice((0.0, 0.05, 0.3))
            worker.again(lease.entry_id, payload, page.priority, 0, wait_s)
        else:
            worker.ack(lease.entry_id)

    def _put_child(
        self, parent: Lease, page: int, attempt: int, filtered: bool, delay_s: float, ordinal: int
    ) -> None:
        if filtered:
            payload = b"%d.%d." % (page, attempt)
            fingerprint = sha1(payload).digest()
            if fingerprint in self._sent:
                self.worker.depends([parent.entry_id], self._sent[fingerprint])
                return
            fed = parent.payload.startswith(FED_MARK)
            put = self.put(
                page, payload, Admission.SEEN, fingerprint, next(self._entry_ids), parent.entry_id, delay_s,
                parent.message if fed else b"",
            )  # fmt: skip
            if self._setup.local_seen and put is not None:
                self._sent[fingerprint] = put.reference
        else:
            of_page, _, origin = parts(parent.payload)
            origin = origin if attempt else f"{of_page}-{ordinal}"
            payload = b"%d.%d.%s" % (page, attempt, origin.encode())
            entry_id = blake2b(parent.entry_id + b"%d" % ordinal, digest_size=ENTRY_ID_BYTES).digest()
            message = parent.message if attempt else b""
            self.put(page, payload, Admission.ID, entry_id, entry_id, parent.entry_id, delay_s, message)

    def put(
        self, page: int, payload: bytes, admission: Admission, token: bytes, entry_id: bytes,
        parent: bytes | None = None, delay_s: float = 0.0, message: bytes = b"",
    ) -> Put | None:  # fmt: skip
        """Add a request to the outbox and return it, or None if the run is over."""
        due_at = self._world.now + delay_s if delay_s else 0.0
        of = self._site[page]
        put = Put(
            entry_id, admission, token, of.priority, 0, payload, parent, partition=of.host, due_at=due_at,
            message=message,
        )  # fmt: skip
        return put if self.worker.put(put) else None

    # The methods that the worker calls.

    def leases_arrived(self) -> None:
        self._wake()

    def run_finished(self) -> None:
        self._wake()

    def frontier_lost(self) -> None:
        self._wake()

    def outbox_lost(self, parentless: bool) -> None:
        self._sent.clear()
        # The worker releases all leases: running ones, and those whose acks were lost with the outbox.
        self._unconfirmed.clear()
        self._taken_by = dict.fromkeys(self._taken_by, frozenset())
        self.spill_lost = self.spill_lost or parentless
        if parentless:
            self.stop("outbox_lost")

    def rolled_back(self, parentless: bool) -> None:
        self._watch(self.process.name, "is rolled back")
        self._sent.clear()
        self.unnoticed = False
        if parentless:
            self.stop("frontier_rolled_back")

    def commanded(self, before: Commands, commands: Commands) -> None:
        if commands.forgets != before.forgets:
            self._sent.clear()
        if commands.stops > before.stops:
            self.stop("stopped")
        self._wake()

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        if kind is Count.EXCHANGE:
            self._entered()
            if self.worker.max_pages_reached:
                self.stop("max_pages")
            elif self.worker.only_over_budget() and not self._stopping:
                self._watch(self.process.name, "closes over budgets")
                self.stop("domain_budget")
            owned = {entry_id for of in self._protocols for entry_id in of.leases.owned}
            for visit in self._unconfirmed:
                if visit.entry_id not in owned:
                    visit.confirmed_at = self._world.now
            self._unconfirmed = [visit for visit in self._unconfirmed if not visit.settled]
        elif kind is Count.REJOIN:
            self.rejoined_at.append(self._world.now)
            self._unconfirmed.clear()


def identity_of(setup: Setup, part: int, budget: int = 0) -> Identity:
    """Return the identity of all workers with the same part of the start requests."""
    return Identity(
        fingerprinter="f", spider="s", spider_args="{}", starts=f"start{part}", run_name=setup.run_name,
        partition_by="host" if setup.hosts > 1 else "none",
        limits=Limits(setup.delay_s, setup.concurrency, budget=budget),
        shards=setup.shards,
    )  # fmt: skip
