"""DQ_MAX_PAGES limits the requests of a run for all workers together."""

from __future__ import annotations

import pytest

from support.given import Look, MakeProject, StartSite
from support.project import Project
from support.tree_site import TreeSite
from support.waiting import wait_until


@pytest.fixture
def crawl(redis_url: str, start_site: StartSite, make_project: MakeProject) -> tuple[TreeSite, Project]:
    """Return a tree of 60 pages and a project that crawls it."""
    site = start_site(pages=60, fan_out=5, latency_s=0.02)
    return site, make_project([site.start_url], redis_url=redis_url, settings={"DQ_WORKER_TTL": 2})


def test_all_workers_together_crawl_no_more_than_max_pages(
    crawl: tuple[TreeSite, Project], look: Look
) -> None:
    """Three workers send exactly the limit. Other requests wait, and a larger limit continues the crawl."""
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


def test_a_kill_does_not_change_the_number_of_pages(crawl: tuple[TreeSite, Project], look: Look) -> None:
    """Other workers crawl the dead worker's requests within the same limit."""
    site, project = crawl
    killed, *others = (project.start_worker(settings={"DQ_MAX_PAGES": 30}) for _ in range(3))
    wait_until(lambda: sum(site.hits().values()) >= 5, "the workers crawl")
    killed.kill()
    for worker in others:
        worker.wait()
        assert worker.close_reason == "max_pages"
    assert look(project).census.done == 30


def test_one_worker_with_several_shards_keeps_max_pages(crawl: tuple[TreeSite, Project], look: Look) -> None:
    """The worker asks all shards at the same time, but keeps the limit for all of them together."""
    site, project = crawl
    settings = {"DQ_SHARDS": 3, "DQ_PARTITION_BY": "none", "DQ_ROLLBACK_HORIZON": 1}
    assert project.run_worker(settings={**settings, "DQ_MAX_PAGES": 25}).close_reason == "max_pages"
    assert sum(site.hits().values()) == 25
    assert project.run_worker(settings=settings).close_reason == "finished"
    assert sum(site.hits().values()) == 60


def test_workers_with_several_shards_exceed_max_pages_only_slightly(crawl: tuple[TreeSite, Project]) -> None:
    """A worker learns late of other workers' leases in another shard, and still crawls its own leases."""
    site, project = crawl
    settings = {"DQ_SHARDS": 3, "DQ_PARTITION_BY": "none", "DQ_ROLLBACK_HORIZON": 1}
    workers = [project.start_worker(settings={**settings, "DQ_MAX_PAGES": 25}) for _ in range(2)]
    project.wait()
    assert {worker.close_reason for worker in workers} == {"max_pages"}
    assert 25 <= sum(site.hits().values()) <= len(workers) * 25
