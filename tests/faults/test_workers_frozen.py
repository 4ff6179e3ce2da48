"""A worker loses its leases if it is frozen, or if a callback blocks it too long, and in no other case."""

from __future__ import annotations

import re
import time

import pytest

from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl
from support.outages import assert_no_outage_logged, lines
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker

TTL_S = 1.5
# Pages are slow, so that the crawl lasts until the frozen worker is back.
SITE = {"latency_s": 0.1}
SETTINGS = {"CONCURRENT_REQUESTS": 4, "DQ_WORKER_TTL": TTL_S}

BLOCK_AT = {1: "5", 2: "5 30"}
"""By number of blocks: which of a worker's pages block it, counted from 1.

The numbers are small, because the other worker may be faster and leave few pages to this one.
"""

# In a worker with BLOCK_AT, a few callbacks block the process at the worst moment: while an exchange is in
# progress, so that the worker cannot read the reply.
BLOCKING = spider_of(
    """
    calls = 0

    async def parse(self, response):
        self.calls += 1
        block = str(self.calls) in os.environ.get("BLOCK_AT", "").split()
        for output in super().parse(response):
            yield output
        if block:
            protocol = self.crawler.engine._slot.scheduler._session.worker.parts[0].protocol
            while protocol.under_way:
                await asyncio.sleep(0)
            while not protocol.under_way:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            self.record("blocked", "-")
            time.sleep(float(os.environ["BLOCK_S"]))
            self.record("unblocked", "-")
""",
    bases="GatheredSpider",
)


def reclaimed(workers: list[Worker]) -> int:
    return sum(worker.stats.get("dq/reclaimed", 0) for worker in workers)


def pages_of(crawl: FaultCrawl, worker: Worker) -> int:
    return crawl.project.count("done", pids=[worker.pid]).total()


def wait_for_pages_of(crawl: FaultCrawl, worker: Worker, more: int = 10) -> None:
    """Wait until *worker* has done *more* further pages."""
    wanted = pages_of(crawl, worker) + more
    wait_until(lambda: pages_of(crawl, worker) >= wanted, f"worker {worker.pid} works", 20)


def assert_reclaimed_and_back(crawl: FaultCrawl, worker: Worker, times: int) -> None:
    """Assert that *worker* was fenced and rejoined *times* times, and that another one logged each death."""
    rejoined = re.findall(r"Worker (\S+) continues as (\S+) with 0 leases", worker.text)
    assert len(rejoined) == times == worker.stats.get("dq/rejoins", 0)
    for old_id, _ in rejoined:
        told = [w for w in crawl.project.workers if f"Worker {old_id} is dead (its heartbeat" in w.text]
        assert len(told) == 1
        assert told != [worker]


def assert_finished(crawl: FaultCrawl, workers: list[Worker], **more: int) -> None:
    verdict = crawl.end()
    back = reclaimed(workers)
    crawl.note(verdict, reclaimed=back, **more)
    crawl.assert_whole(verdict, back)
    overview = crawl.overview()
    assert (overview.phase, overview.members, overview.census.dead) == ("finished", [], 0)
    for worker in workers:
        assert not lines(worker, "ERROR", "CRITICAL")


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_a_frozen_worker_is_reclaimed_and_works_again_after_its_return(
    times: int, fault_crawl: MakeCrawl
) -> None:
    """A worker is stopped for twice the TTL, and others get its requests. Then it rejoins and crawls."""
    crawl = fault_crawl(site=SITE | {"pages": 150 + 200 * times}, settings=SETTINGS, spider=GATHERED)
    workers = start_together(crawl, 2)
    frozen_times = dict.fromkeys(workers, 0)
    for number in range(times):
        zombie, other = workers[number % 2], workers[1 - number % 2]
        wait_for_pages_of(crawl, zombie)
        zombie.suspend()
        frozen_at = time.monotonic()
        frozen_times[zombie] += 1
        other.wait_for_log("is dead (its heartbeat has stopped)", 2 * TTL_S)
        time.sleep(max(0.0, frozen_at + 2 * TTL_S - time.monotonic()))
        zombie.resume()
        wait_until(
            lambda z=zombie: z.text.count(" continues as ") == frozen_times[z], "the worker rejoins", 5
        )
        wait_for_pages_of(crawl, zombie)
        # The run is not finished, so the worker continues in the same run.
        assert len(crawl.done) < crawl.pages

    assert_finished(crawl, workers, freezes=times)
    for worker in workers:
        assert_reclaimed_and_back(crawl, worker, frozen_times[worker])
        warnings = lines(worker, "WARNING")
        assert len(warnings) == frozen_times[worker]
        assert all("is out of sync" in warning for warning in warnings)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_worker_with_a_blocking_callback_is_not_declared_dead(times: int, fault_crawl: MakeCrawl) -> None:
    """A callback sleeps for twice the TTL. No lease is reclaimed, and no page is processed twice.

    The sleep is longer than the time-out for a reply. But Redis replied in time, so no worker logs an outage.
    """
    crawl = fault_crawl(
        proxied=True,
        site=SITE | {"pages": 200 * times},
        settings=SETTINGS,
        spider=BLOCKING,
    )
    crawl.proxy.set_delay(0.02)  # so that the reply arrives while the callback blocks
    environ = {"BLOCK_AT": BLOCK_AT[times], "BLOCK_S": str(2 * TTL_S)}
    (blocking,) = crawl.start(environ=environ)
    workers = start_together(crawl, 1, beside=blocking)

    assert_finished(crawl, workers, blocks=times)
    assert crawl.project.count("unblocked") == {"-": times}
    assert crawl.verdict().repeats == 0
    for worker in workers:
        assert_no_outage_logged(worker)
        assert not lines(worker, "WARNING")
        assert "dq/rejoins" not in worker.stats


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_worker_whose_callback_blocks_too_long_loses_its_leases(times: int, fault_crawl: MakeCrawl) -> None:
    """The worker logs that a callback blocks. Other workers get its requests. Later, the worker rejoins."""
    crawl = fault_crawl(
        site=SITE | {"pages": 150 + 200 * times},
        settings=SETTINGS
        | {"CONSTANTS": {"scrapy_dq.frontier.worker.heartbeat.Heartbeat.stall_timeout_s": 1}},
        spider=BLOCKING,
    )
    environ = {"BLOCK_AT": BLOCK_AT[times], "BLOCK_S": "4"}
    (blocking,) = crawl.start(environ=environ)
    workers = start_together(crawl, 1, beside=blocking)
    blocking.wait_for_log(" s: this worker stops its heartbeat")
    # The heartbeat's thread logs this while the callback still blocks.
    assert crawl.project.count("blocked") != crawl.project.count("unblocked")

    assert_finished(crawl, workers, blocks=times)
    assert crawl.project.count("unblocked") == {"-": times}
    stalled, rejoins = "this worker stops its heartbeat", "is out of sync"
    for warning, says in zip(lines(blocking, "WARNING"), [stalled, rejoins] * times, strict=True):
        assert says in warning
    assert lines(workers[1], "WARNING") == []
    assert_reclaimed_and_back(crawl, blocking, times)
    assert_reclaimed_and_back(crawl, workers[1], 0)
    assert pages_of(crawl, blocking) > int(BLOCK_AT[1])
