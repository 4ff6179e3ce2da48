"""With DQ_STRICT_ORDER, one worker sends requests in exactly the order of Scrapy's own scheduler."""

from __future__ import annotations

from typing import Any

import pytest
import scrapy

from support.given import Tree
from support.project import Project
from support.tree_spider import spider_of

PLAIN = {
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
}
# This spider does not delay the engine. So the engine asks for requests while a page still yields links.
SPIDER = spider_of("""
    async def start(self):
        for number in range(6):
            yield scrapy.Request(self.start_urls[0] + f"?start={number}", priority=number % 2)

    def parse(self, response):
        self.record("done", response.url.partition("?")[0][-8:] + response.url[-8:])
        for number, request in enumerate(response.follow_all(css="a", callback=self.parse)):
            yield request.replace(priority=self.settings.getlist("PRIORITIES")[number % 3])
""")


def sent(project: Project, settings: dict[str, Any]) -> list[str]:
    """Crawl all pages, and return them in the order of their requests."""
    before = len(project.events())
    project.run_to_end(settings=settings, timeout_s=60)
    return [event.path for event in project.events()[before:] if event.event == "done"]


@pytest.mark.skipif(scrapy.version_info < (2, 19), reason="Scrapy's own order differs from run to run")
@pytest.mark.parametrize(
    "settings",
    [
        {"PRIORITIES": [0, 0, 0]},
        {"PRIORITIES": [0, 2, -1]},
        {"PRIORITIES": [0, 0, 0], "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"},
        {"PRIORITIES": [0, 1, 0], "SCHEDULER_START_MEMORY_QUEUE": "scrapy.squeues.LifoMemoryQueue"},
        {"PRIORITIES": [0, 1, 0], "SCHEDULER_START_MEMORY_QUEUE": None},
    ],
    ids=["default", "priorities", "breadth-first", "start-lifo", "start-shared"],
)
def test_requests_are_sent_as_by_scrapys_scheduler(tree: Tree, settings: dict[str, Any]) -> None:
    _, project = tree(spider=SPIDER, settings={"CONCURRENT_REQUESTS": 1, **settings}, pages=85, fan_out=4)
    plain = sent(project, PLAIN)
    assert len(plain) == 85 + 5
    assert sent(project, {"DQ_STRICT_ORDER": True}) == plain
