"""DQ_MAX_PAGES: the requests of a run, over all workers, and not one more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier import Overview
from support.project import Project
from support.tree_site import TreeSite
from support.waiting import wait_until

Look = Callable[[Project], Overview]


@pytest.fixture
def crawl(
    redis_url: str, start_site: Callable[..., TreeSite], make_project: Callable[..., Project]
) -> tuple[TreeSite, Project]:
    """A tree of 60 pages."""
    site = start_site(pages=60, fan_out=5, latency_s=0.02)
    return site, make_project([site.start_url], redis_url=redis_url, settings={"DQ_WORKER_TTL": 2})


def test_all_workers_together_crawl_no_more(crawl: tuple[TreeSite, Project], look: Look) -> None:
    """Exactly so many; what is left waits, and a larger number continues it."""
    site, project = crawl
    workers = [project.start_worker(settings={"DQ_MAX_PAGES": 25}) for _ in range(3)]
    project.wait()
    assert {worker.close_reason for worker in workers} == {"max_pages"}
    assert sum(site.hits().values()) == 25
    overview = look(project)
    assert (overview.phase, overview.census.done, overview.census.in_flight) == ("open", 25, 0)
    assert overview.census.waiting > 0
    assert "DQ_MAX_PAGES is reached: 25 requests are done; " in workers[0].text
    again = project.run_worker(settings={"DQ_MAX_PAGES": 25})
    assert again.close_reason == "max_pages"
    assert sum(site.hits().values()) == 25
    more = project.run_worker(settings={"DQ_MAX_PAGES": 60})
    assert more.close_reason == "finished"
    assert sum(site.hits().values()) == 60


def test_a_kill_does_not_change_the_number(crawl: tuple[TreeSite, Project], look: Look) -> None:
    """What a dead worker had is done by others, within the same number."""
    site, project = crawl
    killed, *others = (project.start_worker(settings={"DQ_MAX_PAGES": 30}) for _ in range(3))
    wait_until(lambda: sum(site.hits().values()) >= 5, "they crawl")
    killed.kill()
    for worker in others:
        worker.wait()
        assert worker.close_reason == "max_pages"
    assert look(project).census.done == 30


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"DQ_MAX_PAGES": -1}, "DQ_MAX_PAGES = '-1': expected 0 to"),
        ({"DQ_MAX_PAGES": 5, "DQ_SHARDS": 2}, "each shard counts by itself, so DQ_MAX_PAGES cannot be kept"),
    ],
    ids=["negative", "shards"],
)
def test_what_cannot_be_kept_is_refused(
    crawl: tuple[TreeSite, Project], settings: dict[str, int], says: str
) -> None:
    site, project = crawl
    worker = project.start_worker(settings=settings)
    worker.wait()
    assert says in worker.text
    assert not site.hits()
