"""Workers are stopped with or without a grace period, during slow pages and callbacks. No page is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from scrapy_dq.frontier.keys import prefix
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.outages import lines
from support.tree_spider import spider_of
from support.waiting import Stopwatch, wait_until
from support.worker import Worker

AT_ONCE_S = 1.0
CONCURRENCY = 4

# Pages are slow only for a worker with PAGE_S, so that the next crawl is quick.
SLOW_PAGES = spider_of("""
    async def start(self):
        for number in range(self.settings.getint("PAGES")):
            url = self.start_urls[0].replace("/p/0", f"/p/{number}")
            yield scrapy.Request(url, dont_filter=True)


class SlowDownload:
    def __init__(self, page_s):
        self.page_s = page_s

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings.getfloat("PAGE_S"))

    async def process_request(self, request, spider=None):
        await asyncio.sleep(self.page_s)
""")

# A worker with STOP_AFTER closes the spider in the root page, after that number of links.
CLOSES_ITSELF = spider_of("""
    def parse(self, response):
        stop_after = self.settings.getint("STOP_AFTER")
        for number, output in enumerate(super().parse(response)):
            if page_path(response) == "/p/0" and number == stop_after > 0:
                raise CloseSpider("enough")
            yield output
""")


def suspects_and_dead_letters(crawl: FaultCrawl) -> int:
    """Return the number of suspects and dead letters. In these tests, only dead workers cause them."""
    with crawl.redis.client() as client:
        name = prefix(crawl.project.name)
        return client.zcard(name + "quarantine") + client.hlen(name + "dead")


def in_flight(crawl: FaultCrawl) -> int:
    return crawl.overview().census.in_flight


def slow_pages(make: MakeCrawl, grace_s: float) -> FaultCrawl:
    """Return a crawl of 24 pages, which take PAGE_S seconds each."""
    return make(
        site={"pages": 24, "fan_out": 0},
        settings={
            "PAGES": 24,
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "DQ_SHUTDOWN_GRACE": grace_s,
            "DOWNLOADER_MIDDLEWARES": {"tree_project.spiders.spider.SlowDownload": 1},
        },
        spider=SLOW_PAGES,
    )


def stored(crawl: FaultCrawl) -> int:
    census = crawl.overview().census
    return census.waiting + census.in_flight


def assert_the_next_crawl_finishes(crawl: FaultCrawl) -> Worker:
    (last,) = crawl.start()
    assert last.wait(60) == 0
    assert last.close_reason == "finished"
    assert re.search("(resumed|joined) run 0", last.text)
    assert not lines(last, "WARNING", "ERROR", "CRITICAL")
    overview = crawl.overview()
    assert (overview.phase, overview.members, overview.census.dead) == ("finished", [], 0)
    assert set(crawl.project.count("item")) == crawl.site.paths
    return last


def test_a_crawl_that_is_deleted_does_not_wait_for_slow_pages(fault_crawl: MakeCrawl) -> None:
    """The grace begins when the worker notices the deletion, because no exchange can start the grace."""
    crawl = slow_pages(fault_crawl, 1)
    (worker,) = crawl.start(settings={"PAGE_S": 3_600})
    wait_until(lambda: in_flight(crawl) > CONCURRENCY, "leases are buffered", 20)
    with crawl.redis.client() as client:
        client.flushall()
    assert worker.wait(60) == 0
    assert worker.close_reason == "frontier_lost"


@pytest.mark.parametrize(
    ("page_s", "grace_s", "killed_after_s", "times"),
    [(6, 2, 2.5, 1), pytest.param(30, 8, 10, 3, marks=pytest.mark.soak)],
)
def test_a_container_that_is_killed_after_its_grace_loses_nothing(
    page_s: float, grace_s: float, killed_after_s: float, times: int, fault_crawl: MakeCrawl
) -> None:
    """Leases that have not started return within 1 s of SIGTERM, and the others after the grace.

    No entry becomes a suspect.
    """
    crawl = slow_pages(fault_crawl, grace_s)
    back_s: list[tuple[float, float]] = []
    for _ in range(times):
        (worker,) = crawl.start(settings={"PAGE_S": page_s})
        wait_until(lambda: in_flight(crawl) > CONCURRENCY, "leases are buffered", 20)
        wait_until(lambda: stored(crawl) == 24, "all start requests are stored")
        stopped_at, clock = time.monotonic(), Stopwatch()
        worker.terminate()
        wait_until(lambda: in_flight(crawl) <= CONCURRENCY, "the buffer is released")
        buffer_s = clock.seconds
        assert in_flight(crawl) == CONCURRENCY
        wait_until(lambda: in_flight(crawl) == 0, "started leases are released")
        assert time.monotonic() - stopped_at > grace_s - 0.1
        back_s.append((round(buffer_s, 2), round(clock.seconds, 2)))
        assert crawl.overview().census.waiting == 24
        assert suspects_and_dead_letters(crawl) == 0
        # The worker now leaves the crawl. The kill may come before the worker has ended.
        time.sleep(max(0.0, stopped_at + killed_after_s - time.monotonic()))
        assert not lines(worker, "WARNING", "ERROR", "CRITICAL")
        if worker.running:
            crawl.kill(worker)
        else:
            assert worker.close_reason == "shutdown"

    last = assert_the_next_crawl_finishes(crawl)

    verdict = crawl.verdict()
    crawl.note(verdict, stops=times, back_s=back_s)
    assert all(buffer_s < AT_ONCE_S and started_s < grace_s + 1 for buffer_s, started_s in back_s)
    assert crawl.leases_at_kills == 0
    assert last.stats.get("dq/reclaimed", 0) == 0
    assert crawl.project.count("done") == dict.fromkeys(crawl.site.paths, 1)
    assert verdict.leases_left == 0


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_second_sigterm_loses_nothing(times: int, fault_crawl: MakeCrawl) -> None:
    """A worker that gets two signals ends at once. The next worker crawls the leased pages again."""
    crawl = fault_crawl(
        # Pages take so long that some are in progress at the second signal.
        site={"pages": 24 * times, "fan_out": 11, "latency_s": 2.0},
        settings={"CONCURRENT_REQUESTS": CONCURRENCY},
    )
    held = 0
    for number in range(times):
        (worker,) = crawl.start()
        crawl.wait_for_part(0.05 + 0.35 * number / times)
        before = crawl.site.hits().total()
        wait_until(lambda n=before: crawl.site.hits().total() > n, "another page is in progress")
        worker.terminate()
        worker.wait_for_log("Received SIGTERM, shutting down")
        held += in_flight(crawl)
        again = Stopwatch()
        worker.terminate()
        worker.wait()
        assert again.seconds < 3
        crawl.killed.add(worker.pid)
        assert "Received SIGTERM twice" in worker.text
        assert crawl.overview().phase == "open"

    crawl.site.set_latency(0.1)
    assert_the_next_crawl_finishes(crawl)

    verdict = crawl.verdict()
    crawl.note(verdict, stops=times, leases_at_stops=held)
    assert not verdict.lost
    assert verdict.repeats <= held
    assert verdict.leases_left == 0


@pytest.mark.parametrize(
    "stops",
    [(40,), pytest.param((40, 1, 99), marks=pytest.mark.soak)],
    ids=lambda stops: f"{len(stops)} times",
)
def test_a_callback_that_closes_the_spider_is_run_again(stops: Sequence[int], fault_crawl: MakeCrawl) -> None:
    """CloseSpider in a callback drops the callback's further links. The next crawl finds all 100 links."""
    crawl = fault_crawl(site={"pages": 101, "fan_out": 100, "latency_s": 0.02}, spider=CLOSES_ITSELF)
    for stop_after in stops:
        (worker,) = crawl.start(settings={"STOP_AFTER": stop_after})
        assert worker.wait(30) == 0
        assert worker.close_reason == "enough"
        assert not re.search("ERROR|Traceback", worker.text)
        assert "/p/0" not in crawl.done
        overview = crawl.overview()
        assert (overview.phase, overview.members, overview.census.in_flight) == ("open", [], 0)
        # The root, and the links that it has yielded so far.
        assert overview.census.waiting + len(crawl.done) == 1 + max(stops[: stops.index(stop_after) + 1])

    assert_the_next_crawl_finishes(crawl)

    verdict = crawl.verdict()
    crawl.note(verdict, stops=len(stops))
    assert crawl.project.count("done") == dict.fromkeys(crawl.site.paths, 1)
    assert verdict.leases_left == 0
