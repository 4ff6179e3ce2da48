"""A worker finds far more links than Redis accepts. No call waits, memory is bounded, no link is lost."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from scrapy_dq.frontier.worker.outbox import MEMORY_MOVES
from support.given import MakeCrawl
from support.outages import assert_outages_logged
from support.tree_spider import spider_of
from support.waiting import wait_until

MIB = 2**20

BROAD = spider_of("""
    async def parse(self, response):
        path = page_path(response)
        if path == "/p/0":
            self.record("start", path)
            while not os.path.exists("go"):
                await asyncio.sleep(0.01)
            began = time.monotonic()
        for request in response.follow_all(css="a", callback=self.parse):
            yield request
        if path == "/p/0":
            self.record("yielded", f"{time.monotonic() - began:.1f}")
        yield {"path": path}
        self.record("done", path)
""")

# While the downloader is busy, Scrapy takes requests from start() without a pause. So start() itself pauses.
MANY_STARTS = spider_of("""
    custom_settings = {"CONCURRENT_REQUESTS": 1, "DOWNLOAD_DELAY": 5, "RETRY_ENABLED": False}

    async def start(self):
        self.record("start", "-")
        for number in range(self.settings.getint("STARTS")):
            yield scrapy.Request(self.start_urls[0] + f"?s=0&n={number}", dont_filter=True)
            if number % 50 == 0:
                await asyncio.sleep(0)
        self.record("exhausted", "-")
""")


@pytest.mark.parametrize("links", [1500, pytest.param(60_000, marks=pytest.mark.soak)])
def test_a_callback_can_yield_many_links_while_redis_is_unavailable(
    links: int, fault_crawl: MakeCrawl
) -> None:
    """The outage does not delay the callback. Workers crawl each link once when Redis is back."""
    site = {"pages": links + 1, "fan_out": links, "latency_s": 0.0}
    # With one item at a time, the callback continues only when Scrapy has enqueued its previous link.
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 32, "CONCURRENT_ITEMS": 1}
    crawl = fault_crawl(site=site, spider=BROAD, settings=settings)
    (worker,) = crawl.start()
    wait_until(lambda: crawl.project.count("start"), "the callback begins", 20)
    with crawl.redis.client() as client:
        # During an fsync, Redis cannot write its AOF. If it is killed then, the lease is lost.
        wait_until(lambda: not client.info("persistence")["aof_buffer_length"], "the AOF is written", 10)
    crawl.redis.kill()

    (crawl.project.folder / "go").touch()
    wait_until(lambda: crawl.project.count("yielded"), "all links are yielded", 30 + links / 500)
    wait_until(lambda: "The crawl continues" in worker.text, "the outage is reported", 10)
    crawl.redis.start()

    verdict = crawl.end(120 + links / 20)
    (yielded_s,) = crawl.project.count("yielded")
    crawl.note(verdict, links=links, yielded_s=yielded_s)
    crawl.assert_whole(verdict, workers=1)
    (outage,) = assert_outages_logged([worker], 1)
    assert outage.kept >= links


# The short test has a longer delay. On a busy machine, start() is slower, and must still outrun Redis.
@pytest.mark.parametrize(
    ("starts", "away_s"), [(60_000, 4.0), pytest.param(1_000_000, 1.0, marks=pytest.mark.soak)]
)
def test_many_start_requests_wait_on_disk_while_redis_is_slow(
    starts: int, away_s: float, fault_crawl: MakeCrawl, tmp_path: Path
) -> None:
    """Moves that Redis has not accepted are on disk. In memory, only a few bytes remain for each request."""
    spill = tmp_path / "spill"
    spill.mkdir()
    crawl = fault_crawl(
        proxied=True,
        site={"pages": 1, "latency_s": 0},
        spider=MANY_STARTS,
        settings={
            "STARTS": starts,
            "DQ_DATA_DIR": str(spill),
            "DQ_WORKER_TTL": 60,
            "REDIS_PARAMS": {"socket_timeout": 20},
        },
    )
    crawl.proxy.set_delay(away_s / 2)
    (worker,) = crawl.start()
    process = psutil.Process(worker.pid)
    wait_until(lambda: crawl.project.count("start"), "start() begins", 30)
    base = peak = process.memory_info().rss
    on_disk = 0
    deadline = time.monotonic() + 60 + starts / 1000
    while not crawl.project.count("exhausted"):
        assert time.monotonic() < deadline, "start() hangs"
        peak = max(peak, process.memory_info().rss)
        on_disk = max(on_disk, sum(file.stat().st_size for file in spill.glob("*/moves/q*")))
        time.sleep(0.1)
    behind = starts - crawl.overview().census.waiting
    assert behind > MEMORY_MOVES
    assert on_disk > (behind - 2 * MEMORY_MOVES) * 100
    crawl.proxy.set_delay(0)

    def stored() -> int:
        census = crawl.overview().census
        return census.waiting + census.in_flight + census.done

    while stored() < starts:
        assert time.monotonic() < deadline, "some start requests are not stored"
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.05)
    wait_until(lambda: not list(spill.iterdir()), "the files are removed")
    worker.terminate()
    worker.wait(30)
    grown = peak - base
    crawl.note(None, starts=starts, behind=behind, on_disk_mib=on_disk // MIB, grown_mib=grown // MIB)
    assert stored() == starts
    assert worker.close_reason == "shutdown"
    # The limit allows for the outbox, the log of DQ_ROLLBACK_HORIZON, and about 80 bytes for each start
    # request, by which the worker recognizes equal requests.
    assert grown < 250 * MIB + 120 * starts
