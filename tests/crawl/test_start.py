"""The requests of start() are crawled once per run, not once per worker, and none is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from crawl.conftest import Plant
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from support.fault_spiders import GATHERED
from support.given import MakeProject, StartRedis, StartSite
from support.project import PLAIN, Project
from support.tree_spider import spider_of
from support.worker import Worker

UNMARKED = "scrapy.spidermiddlewares.start.StartSpiderMiddleware"
COPIES = """\
from scrapy_dq import Scheduler


class Copies(Scheduler):
    def enqueue_request(self, request):
        return super().enqueue_request(request.replace(priority=request.priority))
"""

ITEM_FIRST = spider_of(
    """
    async def seeds(self):
        yield {"path": "from-start"}
        async for request in super().seeds():
            yield request
""",
    bases="GatheredSpider",
)

LINK_BACK = spider_of(
    """
    async def seeds(self):
        for number, url in enumerate(self.start_urls):
            yield scrapy.Request(url, dont_filter=number == 0)

    def parse(self, response):
        yield from super().parse(response)
        for url in self.start_urls:
            yield response.follow(url)
""",
    bases="GatheredSpider",
)

INTERRUPTED = spider_of("""
    async def start(self):
        number = 0
        async for request in super().start():
            if number == int(os.environ.get("FAIL_AFTER", -1)):
                raise RuntimeError("the list of URLs ends in the middle")
            number += 1
            yield request
            await asyncio.sleep(float(os.environ.get("PAUSE", 0)))
""")


def crawl(project: Project, workers: int) -> list[Worker]:
    """Run *workers* to the end and return them. Their start() methods begin at the same time."""
    started = project.start_workers(workers)
    for worker in started:
        worker.wait_for_log("] INFO: Crawl '")
    (project.folder / "go").touch()
    assert project.wait() == ["finished"] * workers
    return started


def test_a_start_request_that_is_retried_or_redirected_is_crawled_once(plant: Plant) -> None:
    """The retry and the redirect of a start request copy its meta, but are no start requests."""
    # There are two retries, so that the second may come from another worker. Many requests lead to one
    # landing page: with dont_filter=True, plain Scrapy crawls all of them, and so do several workers.
    flaky = [f"/p/0?flaky=2&n={number}" for number in range(12)]
    moved = [f"/moved?to=/landing%3Fs%3D0&s=0.3&n={number}" for number in range(12)]
    _, site, project = plant(targets=flaky + moved, spider=GATHERED, pages=20)

    workers = crawl(project, 3)

    assert all(project.count("done", pids=[worker.pid]) for worker in workers)
    once = site.paths - {"/p/0"} | set(flaky)
    assert project.count("done") == dict.fromkeys(once, 1) | {"/landing?s=0": 12}
    assert site.hits() == Counter(
        {**dict.fromkeys(once, 1), **dict.fromkeys(flaky, 3), "/landing?s=0": 12}
    ) + Counter(moved)


@pytest.mark.parametrize(
    ("settings", "workers", "times"),
    [
        pytest.param({}, 3, 1, id="default"),
        pytest.param({"SPIDER_MIDDLEWARES": {UNMARKED: None}}, 2, 1, id="without Scrapy's mark"),
        pytest.param({"SCHEDULER": "tree_project.spiders.spider.Copies"}, 2, 1, id="copied by a subclass"),
        pytest.param({"DQ_SEED_ONCE": False}, 2, 2, id="per worker"),
    ],
)
def test_start_requests_are_run_once_per_run(
    settings: dict[str, Any], workers: int, times: int, plant: Plant
) -> None:
    """Each of 50 start requests is crawled once, even equal ones, by any number of workers.

    This is also true without the middleware that marks start requests, and with a scheduler class that copies
    them. With DQ_SEED_ONCE = False, each worker's start requests are crawled.
    """
    targets = [f"/seed?s=0&n={number}" for number in range(44)] + ["/same?s=0"] * 6
    _, site, project = plant(targets=targets, spider=GATHERED + COPIES, settings=settings, pages=1)

    started = crawl(project, workers)

    expected = Counter(targets * times)
    assert project.count("done") == expected
    assert site.hits() == expected
    known = sum(worker.stats.get("dq/seeds/known", 0) for worker in started)
    assert known == (workers - times) * 50


def test_links_back_to_start_pages_are_followed_as_by_plain_scrapy(
    start_redis: StartRedis,
    start_site: StartSite,
    make_project: MakeProject,
) -> None:
    """A start request with dont_filter=True is not in `seen`, so one link to its page is crawled.

    A start request with dont_filter=False is also crawled once per run, but links to its page are duplicates.
    """
    redis = start_redis(appendonly=True)
    site = start_site(pages=20)
    urls = [site.start_url, site.url("/p/7")]
    ours = make_project(urls, redis_url=redis.url, spider=LINK_BACK)
    plain = make_project(urls, spider=LINK_BACK, settings=PLAIN)

    crawl(ours, 3)
    (plain.folder / "go").touch()
    assert plain.run_worker().close_reason == "finished"

    assert ours.count("done") == dict.fromkeys(site.paths, 1) | {"/p/0": 2}
    assert ours.count("done") == plain.count("done")


def test_items_of_start_are_emitted_once_per_worker(plant: Plant) -> None:
    """Only requests are admitted once per run. Each worker's pipelines get the items of its start()."""
    _, site, project = plant(spider=ITEM_FIRST, pages=5)

    crawl(project, 2)

    assert project.count("item") == dict.fromkeys(site.paths, 1) | {"from-start": 2}


def test_a_start_that_raises_leaves_the_run_open(plant: Plant) -> None:
    """Workers crawl the requests from before the error, and close. The next worker crawls the others."""
    targets = [f"/seed?s=0&n={number}" for number in range(10)]
    redis, _, project = plant(targets=targets, spider=INTERRUPTED, pages=1)

    # Each worker waits until the other has no work. They must not wait for each other without end.
    workers = project.start_workers(2, environ={"FAIL_AFTER": "5"})
    assert project.wait() == ["start_error", "start_error"]
    assert all("the same command runs start() again" in worker.text for worker in workers)
    assert all(worker.text.count("] ERROR: ") == 1 for worker in workers)  # Scrapy's line, with the traceback
    assert project.count("done") == dict.fromkeys(targets[:5], 1)
    with connect_url(redis.url) as client:
        overview = peek(client, project.name)
    assert (overview.phase, overview.members) == ("open", [])

    project.run_to_end()
    assert project.count("done") == dict.fromkeys(targets, 1)
