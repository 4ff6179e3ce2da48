"""Scrapy's loop never waits for Redis, however slow Redis is."""

from __future__ import annotations

from support.given import MakeProject, StartProxy, StartSite
from support.tree_spider import spider_of
from support.waiting import Stopwatch

ROUND_TRIP_S = 1.0
LONGEST_MS = 200

# Records the longest call of each method in milliseconds, and the longest time between two turns of the loop.
SPIDER = spider_of(
    """
    def parse(self, response):
        yield from super().parse(response)
        len(self.crawler.engine._slot.scheduler)


def timed(name):
    original = getattr(Scheduler, name)

    @wraps(original)
    def method(self, *args):
        began = time.perf_counter()
        try:
            return original(self, *args)
        finally:
            self.longest[name] = max(self.longest.get(name, 0), time.perf_counter() - began)
            self.calls[name] = self.calls.get(name, 0) + 1

    return method

class TimedScheduler(Scheduler):
    def __init__(self, crawler):
        super().__init__(crawler)
        self.longest, self.calls = {}, {}
        self.record = Record(crawler)

    enqueue_request = timed("enqueue_request")
    next_request = timed("next_request")
    has_pending_requests = timed("has_pending_requests")
    __len__ = timed("__len__")

    async def turns(self):
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.01)
            now = time.perf_counter()
            self.longest["turn"] = max(self.longest.get("turn", 0), now - last)
            last = now

    def open(self, spider):
        self.task = asyncio.ensure_future(self.turns())
        return super().open(spider)

    def close(self, reason):
        self.task.cancel()
        for name, seconds in self.longest.items():
            self.record("longest-" + name, str(int(seconds * 1000)))
        for name, calls in self.calls.items():
            self.record("calls-" + name, str(calls))
        return super().close(reason)
""",
    before="from functools import wraps\nfrom scrapy_dq import Scheduler\n",
)


def test_no_call_of_the_engine_waits_for_a_slow_redis(
    redis_url: str,
    make_project: MakeProject,
    start_site: StartSite,
    start_proxy: StartProxy,
) -> None:
    """Each round trip takes 1 s: the crawl ends complete, and no call that the engine makes takes 200 ms."""
    proxy = start_proxy(redis_url)
    proxy.set_delay(ROUND_TRIP_S / 2)
    site = start_site(pages=13, fan_out=12)
    project = make_project(
        [site.start_url],
        redis_url=proxy.url,
        spider=SPIDER,
        settings={"SCHEDULER": "tree_project.spiders.spider.TimedScheduler"},
    )
    clock = Stopwatch()
    worker = project.run_worker(timeout_s=60)
    stalled_ms = clock.stalled_s * 1000
    assert worker.close_reason == "finished"
    assert project.count() == project.count("item") == dict.fromkeys(site.paths, 1)
    assert worker.stats["dq/acked"] == 13
    stats = worker.stats
    assert stats["dq/exchanges/seconds"] >= stats["dq/exchanges"] * ROUND_TRIP_S
    assert "dq/redis_errors" not in stats
    told = {e.event: int(e.path) for e in project.events() if e.event.startswith(("longest-", "calls-"))}
    for name in ("enqueue_request", "next_request", "has_pending_requests", "__len__"):
        assert told[f"calls-{name}"] > 1
        assert told[f"longest-{name}"] < min(LONGEST_MS + stalled_ms, ROUND_TRIP_S * 1000)
    # Not only while the engine calls: nothing else of ours delays the loop either.
    assert told["longest-turn"] < min(ROUND_TRIP_S * 1000 / 2 + stalled_ms, ROUND_TRIP_S * 1000)
