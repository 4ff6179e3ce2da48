"""Workers of other versions or projects meet a crawl that goes on: who does not fit is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scrapy_dq.frontier import keys
from support.fault_crawl import FaultCrawl
from support.given import Figures, MakeCrawl, MakeProject
from support.outages import assert_quiet, lines
from support.project import SPIDER, Project
from support.worker import Worker

LATENCY_S = 0.1
SITE = {"pages": 200, "latency_s": LATENCY_S}
SETTINGS = {"CONCURRENT_REQUESTS": 4}

# A package of another version, as far as the frontier can tell.
VERSIONS = """\
import os

from scrapy_dq.frontier import keys

keys.SCHEMA = os.environ.get("SCHEMA", keys.SCHEMA)
"""
OTHER_CLASS = SPIDER.replace("ProjectSpider", "OtherSpider")


@pytest.fixture
def second_project(make_project: MakeProject) -> MakeProject:
    """Return a function that makes another project whose spider has the same name, for the same record."""

    def make(crawl: FaultCrawl, spider: str = SPIDER) -> Project:
        return make_project(
            [crawl.site.start_url],
            redis_url=crawl.redis_url,
            settings={**SETTINGS, "DQ_WORKER_TTL": 2, "RECORD_PATH": str(crawl.project.record)},
            spider=spider,
            name=crawl.project.name,
        )

    return make


def start_first(crawl: FaultCrawl, environ: Mapping[str, str] | None = None) -> Worker:
    (worker,) = crawl.start(environ=environ)
    crawl.wait_for_part(0.1)
    # Its pages outlast the start of the second one, however long that takes.
    crawl.site.set_latency(2)
    return worker


def assert_refused(worker: Worker, *says: str) -> None:
    """Assert that *worker* says why in its first error, asked for no page, and ended."""
    assert worker.wait(30) is not None
    first = lines(worker, "ERROR", "CRITICAL")[0]
    assert first.startswith("ERROR: scrapy_dq cannot open the crawl")
    for words in says:
        assert words in first
    assert "downloader/request_count" not in worker.stats
    assert worker.close_reason != "finished"


def assert_the_crawl_goes_on(crawl: FaultCrawl, worker: Worker, members: list[str]) -> None:
    """Assert that the crawl is as it was, and that *worker* finishes it, with nothing to complain of."""
    assert [member.worker_id for member in crawl.overview().members] == members
    assert len(crawl.done) < crawl.pages
    crawl.site.set_latency(LATENCY_S)
    assert worker.wait(60) == 0
    assert worker.close_reason == "finished"
    assert_quiet(worker)
    assert not lines(worker, "WARNING")
    assert crawl.project.count("done") == dict.fromkeys(crawl.site.paths, 1)
    overview = crawl.overview()
    assert (overview.phase, overview.members, overview.run) == ("finished", [], 0)


def members_of(crawl: FaultCrawl) -> list[str]:
    return [member.worker_id for member in crawl.overview().members]


@pytest.mark.parametrize(("first", "second"), [("1", "2"), pytest.param("2", "1", marks=pytest.mark.soak)])
def test_a_worker_of_another_package_version_is_refused(
    first: str, second: str, fault_crawl: MakeCrawl, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second names both schema versions and ends; the first one notices nothing."""
    monkeypatch.setattr(keys, "SCHEMA", first)  # for the looks of this test
    crawl = fault_crawl(site=SITE, settings=SETTINGS, spider=VERSIONS + SPIDER)
    going = start_first(crawl, {"SCHEMA": first})
    members = members_of(crawl)

    (refused,) = crawl.start(environ={"SCHEMA": second})

    assert_refused(
        refused, f"schema version '{first}', this worker has '{second}'", "SCHEDULER_FLUSH_ON_START"
    )
    assert_the_crawl_goes_on(crawl, going, members)
    verdict = crawl.verdict()
    figures(verdict)
    assert not verdict.lost
    assert (verdict.repeats, verdict.leases_left) == (0, 0)


def test_two_projects_with_the_same_spider_share_the_crawl(
    fault_crawl: MakeCrawl, second_project: MakeProject, figures: Figures
) -> None:
    """Same spider name, same dotted name of the class, two folders: each page is done once, by either."""
    crawl = fault_crawl(site=SITE, settings=SETTINGS)
    first = start_first(crawl)
    second = second_project(crawl).start_worker()
    second.wait_for_log("] INFO: Crawl '")
    crawl.site.set_latency(LATENCY_S)

    verdict = crawl.end()
    assert second.wait(10) == 0
    figures(verdict)
    assert (first.close_reason, second.close_reason) == ("finished", "finished")
    assert "joined run 0 alongside 1 registered worker;" in second.text
    assert crawl.project.count("done") == dict.fromkeys(crawl.site.paths, 1)
    for worker in (first, second):
        assert crawl.project.count("done", pids=[worker.pid]).total() > 10
        assert_quiet(worker)
    assert verdict.leases_left == 0


def test_another_spider_of_the_same_name_is_refused(
    fault_crawl: MakeCrawl, second_project: MakeProject, figures: Figures
) -> None:
    """Same spider name, another class: it names both classes and DQ_CRAWL, ends, and has changed nothing."""
    crawl = fault_crawl(site=SITE, settings=SETTINGS)
    first = start_first(crawl)
    members = members_of(crawl)

    other = second_project(crawl, OTHER_CLASS).start_worker()

    module = "tree_project.spiders.spider"
    assert_refused(
        other, f"spider class '{module}.ProjectSpider', this worker has '{module}.OtherSpider'", "DQ_CRAWL"
    )
    assert_the_crawl_goes_on(crawl, first, members)
    figures(crawl.verdict())
