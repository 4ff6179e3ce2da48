"""The end of a run: all workers stay until all requests are done, and then all of them leave."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from crawl.conftest import Plant
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from support import stored
from support.project import Project
from support.tree_spider import spider_of
from support.waiting import Stopwatch, wait_until
from support.worker import Worker

LATEST_S = 5.0
"""Maximum time between the last ack and the end of the last worker."""

# `over` records the time at which the callback of a page ended.
TIMED = """
    def over(self):
        # CLOCK_MONOTONIC is the same in all processes of a machine.
        self.record("over", repr(time.monotonic()))

    def parse(self, response):
        yield from super().parse(response)
        self.over()
"""

SLOW_START = spider_of(
    TIMED
    + """
    seeds = "0"

    async def start(self):
        for number in range(int(self.seeds)):
            yield scrapy.Request(self.start_urls[0] + f"?seed={number}", dont_filter=True)
            await self.until_told()
            await asyncio.sleep(0.8)
""",
    bases="GatheredSpider",
)

LATE_LINKS = spider_of(
    TIMED
    + """
    start = GatheredSpider.seeds  # its callbacks wait

    async def parse(self, response):
        path = page_path(response)
        self.record("start", path)
        await self.until_told()
        await asyncio.sleep(1.2)
        for link in response.css("a"):
            yield response.follow(link)
        self.record("done", path)
        self.over()
""",
    bases="GatheredSpider",
)

IDLE = spider_of(
    TIMED
    + """
    more = True

    RECEIVERS = {"on_idle": signals.spider_idle}

    def on_idle(self, spider):
        self.record("idle", "-")
        if self.more:
            self.more = False
            self.crawler.engine.crawl(scrapy.Request(self.start_urls[0] + f"&by={self.dq_worker}"))
""",
    bases="GatheredSpider",
)


def let_go(project: Project) -> None:
    """Wait until all workers have joined the crawl, and then end `until_told` in their spiders."""
    for worker in project.workers:
        worker.wait_for_log("] INFO: Crawl '")
    (project.folder / "go").touch()


def end_of(project: Project, workers: Sequence[Worker], timeout_s: float = 40.0) -> list[float]:
    """Wait until all *workers* end, and return their end times by the clock of `over`, minus stalls."""
    clock = Stopwatch()
    ended: dict[int, float] = {}

    def look() -> bool:
        for worker in workers:
            if worker.pid not in ended and not worker.running:
                ended[worker.pid] = time.monotonic() - clock.stalled_s
        return len(ended) == len(workers)

    wait_until(look, "all workers end", timeout_s)
    assert [worker.close_reason for worker in workers] == ["finished"] * len(workers)
    return [ended[worker.pid] for worker in workers]


def assert_all_left_just_after_the_last_page(project: Project, ended: Sequence[float]) -> None:
    last = max(float(event.path) for event in project.events() if event.event == "over")
    assert all(end <= last + LATEST_S for end in ended), [end - last for end in ended]


def test_an_empty_backlog_is_not_the_end_while_another_worker_is_at_a_slow_page(plant: Plant) -> None:
    """The first page takes 6 s. A worker that joins after 3 s stays, and gets a part of the page's links."""
    _, site, project = plant(
        targets=["/p/0?s=6"], spider=spider_of(TIMED), pages=80, fan_out=79, latency_s=0.3
    )
    first = project.start_worker()
    began = time.monotonic()
    wait_until(site.hits, "the first worker asks for the slow page")
    time.sleep(max(0.0, began + 3 - time.monotonic()))
    second = project.start_worker()
    second.wait_for_log("joined run 0 alongside 1 registered worker; 0 waiting, 1 in flight")

    ended = end_of(project, [first, second])

    assert_all_left_just_after_the_last_page(project, ended)
    assert sum(project.count("done", pids=[second.pid]).values()) > 0
    assert set(project.count("done")) == site.paths - {"/p/0"} | {"/p/0?s=6"}
    assert sum(project.count("done").values()) == 80


@pytest.mark.parametrize(
    "stagger_s", [0.3, *(pytest.param(tenths / 10, marks=pytest.mark.soak) for tenths in range(10))]
)
def test_no_worker_leaves_while_another_yields_start_requests(stagger_s: float, plant: Plant) -> None:
    """Four workers start one after another. Three have fewer start requests, and wait for the first one."""
    _, _, project = plant(spider=SLOW_START, pages=1)
    workers = [project.start_worker(args={"seeds": "4"})]
    wait_until(lambda: project.count("done"), "the first start request is done")
    for seeds in ("0", "1", "2"):
        workers.append(project.start_worker(args={"seeds": seeds}))
        time.sleep(stagger_s)
    let_go(project)

    ended = end_of(project, workers)

    assert_all_left_just_after_the_last_page(project, ended)
    assert project.count("done") == {f"/p/0?seed={number}": 1 for number in range(4)}
    for worker in workers[1:]:
        assert "joined run 0" in worker.text


def test_no_worker_leaves_while_a_callback_may_still_find_links(plant: Plant) -> None:
    """Each page yields its links at the end of a long callback, while nothing waits or is downloaded."""
    _, site, project = plant(spider=LATE_LINKS, pages=3, fan_out=1)
    workers = [project.start_worker()]
    wait_until(lambda: project.count("start"), "the first callback runs")
    workers.append(project.start_worker())
    let_go(project)

    ended = end_of(project, workers)

    assert_all_left_just_after_the_last_page(project, ended)
    assert project.count("done") == dict.fromkeys(site.paths, 1)
    assert "joined run 0" in workers[1].text


def test_a_request_of_a_spider_idle_handler_opens_the_run_again(plant: Plant) -> None:
    """When a worker learns that the run is finished, it adds a request. Each request is crawled once.

    A worker may close before the other adds its request. The worker that adds a request stays and crawls it.
    """
    redis, _, project = plant(targets=["/p/0?s=0.5"], spider=IDLE, pages=1)
    workers = project.start_workers(2)
    let_go(project)

    ended = end_of(project, workers)

    assert_all_left_just_after_the_last_page(project, [max(ended)])
    assert sorted(project.count("done").values()) == [1, 1, 1]
    assert all(project.count("idle", pids=[worker.pid])["-"] >= 2 for worker in workers)
    with connect_url(redis.url) as client:
        overview = peek(client, project.name)
        # The last worker has removed everything except the tombstone and the history.
        left = {key.decode().rpartition("}:")[2] for key in stored.crawl_keys(client, project.name)}
        assert left == {"meta", *stored.HISTORY}
    assert (overview.phase, overview.members, overview.census.done) == ("finished", [], 3)
