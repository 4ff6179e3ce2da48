"""A simulated `scrapy dq push`: the real producer puts pages and leaves."""

from __future__ import annotations

from hashlib import sha1
from random import Random
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Admission, FrontierError
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.pushing.producer import Producer
from scrapy_dq.scheduling.admission import entry_ids
from simulation.crawler import identity_of
from simulation.network import Client, HeartbeatClient, Network
from simulation.plan import Setup
from simulation.site import Page
from simulation.store import CRAWL
from simulation.virtual import Process


class Program:
    """A process that is a member without a spider."""

    def __init__(self, network: Network, name: str) -> None:
        self.process = Process(network.world, name)
        self.ids: set[str] = set()
        self.ending = ""
        self.stored: set[tuple[int, str]] = set()
        """Pages whose put Redis has confirmed, with their origins."""

    @property
    def there(self) -> bool:
        """Whether the process runs: it has not ended and was not killed."""
        return self.process.alive and not self.ending

    def has_joined(self, worker_id: str) -> bool:
        return False  # no check asks whether a late copy of its join arrived


class Pusher(Program):
    """One process that pushes a few pages and may be killed while it does so."""

    def __init__(self, network: Network, setup: Setup, site: list[Page], name: str, random: Random) -> None:
        super().__init__(network, name)
        self.gave_up = False
        """The push has not left, or its leave was not answered."""
        self._left = False
        self._setup, self._site = setup, site
        self._pages = [random.randrange(len(site)) for _ in range(random.choice((1, 3)))]
        frontiers = [
            Frontier(Client(network, self.process), CRAWL, setup.order, seen=setup.seen, shard=shard)
            for shard in range(setup.shards)
        ]
        self._producer = Producer(
            frontiers, identity_of(setup, 0, setup.budget_at(network.world.now)),
            WorkerOptions(
                ttl_s=setup.ttl_s, rollback_horizon_s=setup.horizon_s,
                max_attempts=setup.max_attempts, spill_dir=setup.spill_dir,
            ),
            connect=lambda shard: HeartbeatClient(network, self.process), dropped=lambda put: None,
        )  # fmt: skip
        self._call_leave = frontiers[HOME].leave
        frontiers[HOME].leave = self._leave  # type: ignore[method-assign]
        network.world.at(
            network.world.now, lambda: self.process.loop.create_task(self._main()), self.process.main
        )
        if random.random() < 0.3:
            network.world.at(network.world.now + random.uniform(0.0, 0.1), self.process.kill)

    @property
    def worker_ids(self) -> set[str]:
        """The ids with which the push considers itself a member."""
        return {worker_id for _, worker_id in self._producer.members}

    async def _leave(self, *args: Any, **options: Any) -> tuple[int, bool]:
        answer = await self._call_leave(*args, **options)
        self._left = True
        return answer

    async def _main(self) -> None:
        ids = entry_ids()
        try:
            async with self._producer.joined():
                for page in self._pages:
                    payload = b"%d.0." % page
                    of = self._site[page]
                    put = Put(
                        next(ids), Admission.SEEN, sha1(payload).digest(), of.priority, 0, payload, None,
                        partition=of.host,
                    )  # fmt: skip
                    await self._producer.put(put)
                await self._producer.hand_in()
                if not (self._producer.disturbed or self._producer.unconfirmed):
                    self.stored = {(page, "") for page in self._pages}
            self.ending = "done"
        except FrontierError as error:
            self.ending = str(error)
        self.gave_up = not self._left
