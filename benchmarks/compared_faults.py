"""The faults of `make compare-faults`, which are the same for scrapy_dq and its peers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.compared_spiders import FULL_PAGE, ClosingSpider, LambdaSpider, PoisonSpider
from support.fault_crawl import FaultCrawl
from support.project import PLAIN, SPIDER, Project
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.tree_site import TreeSite
from support.tree_spider import spider_source
from support.waiting import wait_until
from support.worker import Worker

DEADLINE_S = 60.0  # for each wait; a longer wait counts as a hang
# Crawlee gives a dead worker's requests to other workers after 300 s, and looks every 30 s.
CRAWLEE_DEADLINE_S = 400.0
QUICK_S = 0.03  # for each page, unless a fault says otherwise
PUTTING = ("zadd", "rpush", "sadd", "hset")
"""The commands with which each scheduler puts a request."""
TRANSACTION = ("MULTI", "ZRANGE", "ZREMRANGEBYRANK")
"""scrapy-redis pops with these commands and EXEC in one round trip, so only the reply to EXEC may be cut."""

Contender = Literal["scrapy_dq", "scrapy-redis", "JOBDIR", "JOBDIR-SQLite", "Crawlee"]
CONTENDERS: dict[Contender, Mapping[str, Any]] = {
    "scrapy_dq": {},
    "scrapy-redis": {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        # Without this, the first worker that closes deletes the other workers' queue.
        "SCHEDULER_PERSIST": True,
    },
    "JOBDIR": {**PLAIN, "JOBDIR": "job"},
    # Since Scrapy 2.19.
    "JOBDIR-SQLite": {
        **PLAIN, "JOBDIR": "job", "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoSQLiteQueue",
    },
    # Not a scheduler of Scrapy: see crawlee_crawl.py.
    "Crawlee": {},
}  # fmt: skip
"""The settings of each scheduler, in addition to the settings of Project."""
LOCAL = ("JOBDIR", "JOBDIR-SQLite")
"""Schedulers without a Redis, which allow only one worker at a time."""


class ComparedCrawl(FaultCrawl):
    """A crawl with one of the schedulers. Only scrapy_dq has leases."""

    def __init__(
        self,
        project: Project,
        site: TreeSite,
        redis: RedisServer | None,
        proxy: RedisProxy | None,
        contender: Contender,
    ) -> None:
        super().__init__(project, site, redis, proxy)
        self.contender: Contender = contender

    def leases(self, pids: Collection[int] | None = None) -> int:
        """Return how many leases the workers of these processes hold, or all workers if *pids* is None."""
        return super().leases(pids) if self.contender == "scrapy_dq" else 0


@dataclass
class Scene:
    """The crawl that a fault is applied to."""

    crawl: ComparedCrawl
    rng: random.Random
    """Makes the same numbers for each scheduler."""

    @property
    def redis(self) -> RedisServer:
        """The server of the crawl. A fault with `needs_redis` has one."""
        assert isinstance(self.crawl.redis, RedisServer)
        return self.crawl.redis

    def start(self) -> Worker:
        """Start a worker and wait until its spider is open or it has ended."""
        (worker,) = self.crawl.start()
        self._wait(lambda: "Spider opened" in worker.text or not worker.running, "the spider is open")
        return worker

    def advance(self, part: float | None = None) -> None:
        """Wait until *part* of all pages (by default 5 to 20 %) is done, or no worker runs."""
        goal = int(self.crawl.pages * (self.rng.uniform(0.05, 0.2) if part is None else part))
        self._wait(lambda: len(self.crawl.done) >= goal or not self.crawl.live, f"{goal} pages are done")

    def replace_ended(self) -> None:
        """Act like a supervisor: start a worker if none runs."""
        if not self.crawl.live:
            self.start()

    def end(self) -> None:
        """Wait until every worker has ended."""
        for worker in self.crawl.live:
            self._wait(lambda w=worker: not w.running, f"worker {worker.pid} ends")

    def resume(self) -> None:
        """Start at most three workers, one after the other, until one of them finds no new page."""
        self.end()
        for _ in range(3):
            before = self.crawl.verdict().lost
            if not before:
                return
            self.start()
            self.end()
            if self.crawl.verdict().lost == before:
                return

    def _wait(self, probe: Callable[[], Any], what: str) -> None:
        deadline_s = CRAWLEE_DEADLINE_S if self.crawl.contender == "Crawlee" else DEADLINE_S
        wait_until(probe, what, deadline_s)


def kill_the_worker(scene: Scene) -> None:
    worker = scene.start()
    scene.advance()
    scene.crawl.kill(worker)


def kill_one_of_two(scene: Scene) -> None:
    live = [scene.start() for _ in range(1 if scene.crawl.contender in LOCAL else 2)]
    for part in (0.05, 0.09, 0.13, 0.17, 0.2):
        scene.advance(part)
        victim = live.pop(0)
        if victim.running:
            scene.crawl.kill(victim)
        live.append(scene.start())


def take_redis_away(scene: Scene) -> None:
    scene.start()
    scene.advance()
    scene.redis.kill()
    time.sleep(12)
    scene.redis.start()
    scene.replace_ended()


def stop_like_a_container(scene: Scene) -> None:
    site = scene.crawl.site
    site.set_latency(0.5)
    worker = scene.start()
    wait_until(site.hits, "the root is asked for")
    site.set_latency(30)
    wait_until(lambda: site.hits().total() > 30, "a page is asked for by each downloader", DEADLINE_S)
    worker.terminate()
    time.sleep(10)
    if worker.running:
        scene.crawl.kill(worker)
    site.set_latency(QUICK_S)


def cut_replies(scene: Scene) -> None:
    scene.start()
    scene.advance(0.05)
    scene.crawl.proxy.set_loss(0.1, seed=scene.rng.randrange(2**32), spare=TRANSACTION)
    scene.end()
    scene.crawl.proxy.set_loss(0)


def swallow_everything(scene: Scene) -> None:
    scene.start()
    scene.advance()
    scene.crawl.proxy.black_hole()
    time.sleep(10)
    scene.crawl.proxy.pass_through()
    scene.replace_ended()


def flush_all(scene: Scene) -> None:
    scene.start()
    scene.advance()
    with scene.redis.client() as client:
        client.flushall()


def lose_power(scene: Scene) -> None:
    scene.start()
    scene.advance(0.05)
    snapshot = scene.redis.snapshot()
    time.sleep(1)
    scene.redis.roll_back(snapshot)
    scene.replace_ended()


def lose_more_than_the_log_holds(scene: Scene) -> None:
    scene.crawl.site.set_latency(0.25)  # otherwise the crawl would end too early
    scene.start()
    scene.advance(0.05)
    snapshot = scene.redis.snapshot()
    time.sleep(12)
    scene.redis.roll_back(snapshot)
    scene.crawl.site.set_latency(QUICK_S)
    scene.replace_ended()


def fill_memory(scene: Scene) -> None:
    scene.start()
    scene.advance()
    with scene.redis.client() as client:
        client.config_set("maxmemory", "1mb")
        time.sleep(3)
        client.config_set("maxmemory", "0")
    scene.replace_ended()


def narrow_rights(scene: Scene) -> None:
    scene.start()
    scene.advance()
    with scene.redis.client() as client:
        client.execute_command("ACL", "SETUSER", "default", *(f"-{command}" for command in PUTTING))
        time.sleep(3)
        client.execute_command("ACL", "SETUSER", "default", *(f"+{command}" for command in PUTTING))
    scene.replace_ended()


def supervise(scene: Scene) -> None:
    for _ in range(1 + 6):
        worker = scene.start()
        scene.end()
        if worker.close_reason:  # it was not killed
            return


def freeze_redis(scene: Scene) -> None:
    scene.start()
    scene.advance()
    scene.redis.suspend()
    time.sleep(10)
    scene.redis.resume()
    scene.replace_ended()


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    title: str
    what: str
    strike: Callable[[Scene], object]
    needs_redis: bool = False
    through_proxy: bool = False
    spider: str = SPIDER
    site: Mapping[str, Any] = field(default_factory=dict)


FAULTS: dict[str, Fault] = {
    "kill": Fault(
        "kill -9 of the only worker", "SIGKILL at 5–20 % of the crawl, then a restart.", kill_the_worker
    ),
    "rolling-kill": Fault(
        "5 × kill -9, one of two workers",
        "Five times, at 5 to 20 %, the older of two workers gets SIGKILL and is replaced. "
        "JOBDIR: the only worker.",
        kill_one_of_two,
    ),
    "redis-away": Fault(
        "Redis away for 12 s", "Redis gets SIGKILL and comes back with its AOF.", take_redis_away, True
    ),
    "sigterm": Fault(
        "SIGTERM, SIGKILL 10 s later",
        "61 pages of 30 s, 32 of them in progress, as with `docker stop`; quick pages after the restart. "
        "(JOBDIR has not written a fingerprint yet, so it crawls all pages again.)",
        stop_like_a_container,
        site={"pages": 61, "fan_out": 60},
    ),
    "cut-replies": Fault(
        "10 % of replies cut",
        "After 5 % of the crawl, one reply in ten is cut, after Redis has applied the command; of a "
        "transaction, only the last reply may be cut.",
        cut_replies, True, True,
    ),
    "black-hole": Fault(
        "network silent for 10 s", "Connections stay, without answers.", swallow_everything, True, True
    ),
    "flushall": Fault(
        "FLUSHALL", "Another client empties Redis; the workers end, then a restart.", flush_all, True
    ),
    "power-loss": Fault(
        "Redis loses 1 s", "Redis is killed, and restarts with its data of 1 s before.", lose_power, True
    ),
    "old-data": Fault(
        "Redis loses 12 s",
        "The same with data of 12 s before, as on a lagging replica; until then, pages take 0.25 s.",
        lose_more_than_the_log_holds, True,
    ),
    "maxmemory": Fault(
        "maxmemory reached", "Redis refuses writes (noeviction) for 3 s.", fill_memory, True
    ),
    "rights": Fault(
        "rights narrowed for 3 s", "For this time, the user may not call ZADD, RPUSH, SADD and HSET.",
        narrow_rights, True,
    ),
    "lambda": Fault(
        "lambda callbacks", "One link in twenty has a lambda callback; there is no fault.", Scene.start,
        spider=spider_source(LambdaSpider),
    ),
    "closespider": Fault(
        "CloseSpider in a callback", "Raised after 50 of the 100 links of a page, then a restart.",
        Scene.start, spider=spider_source(ClosingSpider), site={"fan_out": FULL_PAGE},
    ),
    "poison": Fault(
        "a page that kills its worker", "The worker is restarted up to 6 times; only other pages count.",
        supervise, spider=spider_source(PoisonSpider),
    ),
    "frozen-redis": Fault(
        "Redis frozen for 10 s", "SIGSTOP, then SIGCONT; `DQ_WORKER_TTL` is 5 s.", freeze_redis, True
    ),
}  # fmt: skip
