"""A project's scheduler class copies or drops requests. A copy takes the lease. A dropped request fails."""

from __future__ import annotations

import pytest

from support.given import Look, Tree
from support.tree_spider import spider_of

SPIDER = spider_of(
    """
    async def start(self):
        for n in range(8):
            meta = {"dq_local": n % 2 == 0}
            yield scrapy.Request(f"{self.start_urls[0]}/seed?s=0&n={n}", self.first, meta=meta)

    def first(self, response):
        self.record("done", response.url[-len("n=0"):] if "&replaced" not in response.url else "replaced")
        yield response.follow(response.url + "&child=1", self.second, dont_filter=True, meta=response.meta)

    def second(self, response):
        self.record("child", "-")


handed_out.PATIENCE_S = 0.1

class Copies(Scheduler):
    def next_request(self):
        request = super().next_request()
        return request and request.copy()

class Replaces(Scheduler):
    def next_request(self):
        request = super().next_request()
        return request and request.replace(url=request.url + "&replaced=1", priority=5)

class ReplacesMeta(Scheduler):
    def next_request(self):
        request = super().next_request()
        return request and request.replace(meta={"new": True})

class Buffers(Scheduler):
    def __init__(self, crawler):
        super().__init__(crawler)
        self.buffer = []

    def next_request(self):
        while (request := super().next_request()) is not None:
            self.buffer.append(request.copy())
        return self.buffer.pop() if self.buffer else None

class Wraps(BaseScheduler):
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.inner = Scheduler.from_crawler(crawler)
        return self

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open(self, spider):
        return self.inner.open(spider)

    def close(self, reason):
        return self.inner.close(reason)

    def has_pending_requests(self):
        return self.inner.has_pending_requests()

    def enqueue_request(self, request):
        return self.inner.enqueue_request(request)

    def next_request(self):
        request = self.inner.next_request()
        return request and request.copy()

class DropsOne(Scheduler):
    def next_request(self):
        request = super().next_request()
        return None if request is not None and "n=3" in request.url else request
""",
    before="""
from scrapy.core.scheduler import BaseScheduler
from scrapy_dq import Scheduler
from scrapy_dq.scheduling import handed_out
""",
)


@pytest.mark.parametrize("name", ["Copies", "Replaces", "ReplacesMeta", "Buffers", "Wraps"])
def test_a_lease_follows_its_request_into_a_copy(begin: Tree, look: Look, name: str) -> None:
    """Stored and local requests are done when the engine's copy of them is done, with or without a delay."""
    scheduler = f"tree_project.spiders.spider.{name}"
    _, project = begin(SPIDER, {"SCHEDULER": scheduler, "DQ_DOMAIN_DELAY": 0.01})
    worker = project.run_worker(timeout_s=20)
    assert worker.close_reason == "finished"
    assert project.count("done").total() == project.count("child").total() == 8
    assert "next_request() took it and did not return" not in worker.text
    assert look(project).census.failed == 0


def test_a_request_that_a_scheduler_drops_fails(begin: Tree, look: Look) -> None:
    """The crawl ends, `retry` finds the request, and one warning names the scheduler class."""
    _, project = begin(SPIDER, {"SCHEDULER": "tree_project.spiders.spider.DropsOne"})
    worker = project.run_worker(timeout_s=20)
    assert worker.close_reason == "finished"
    assert project.count("done") == {f"n={n}": 1 for n in range(8) if n != 3}
    assert look(project).census.failed == 1
    assert worker.text.count("DropsOne.next_request() took it and did not return") == 1
