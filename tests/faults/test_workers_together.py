"""Workers of other versions or projects join a running crawl. Incompatible workers are refused."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier import keys
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl, MakeProject
from support.outages import assert_no_outage_logged, lines
from support.project import SPIDER
from support.worker import Worker

LATENCY_S = 0.1
SITE = {"pages": 200, "latency_s": LATENCY_S}
SETTINGS = {"CONCURRENT_REQUESTS": 4}

# With this code, a worker with SCHEMA in its environment looks like another version of scrapy_dq.
VERSIONS = """\
import os

from scrapy_dq.frontier import keys

keys.SCHEMA = os.environ.get("SCHEMA", keys.SCHEMA)
"""
OTHER_CLASS = SPIDER.replace("ProjectSpider", "OtherSpider")


def start_first(crawl: FaultCrawl) -> Worker:
    (worker,) = crawl.start()
    crawl.wait_for_part(0.1)
    # The first worker's pages must outlast the start of the second worker.
    crawl.site.set_latency(2)
    return worker


def assert_refused(worker: Worker, *says: str) -> None:
    """Assert that *worker* named the reason in its first error, sent no request, and ended."""
    assert worker.wait(30) is not None
    first = lines(worker, "ERROR", "CRITICAL")[0]
    assert first.startswith("ERROR: scrapy_dq cannot open the crawl")
    for words in says:
        assert words in first
    assert "downloader/request_count" not in worker.stats
    assert worker.close_reason != "finished"


def assert_the_crawl_goes_on(crawl: FaultCrawl, worker: Worker, members: list[str]) -> None:
    """Assert that the crawl is unchanged, and that *worker* finishes it without a warning."""
    assert [member.worker_id for member in crawl.overview().members] == members
    assert len(crawl.done) < crawl.pages
    crawl.site.set_latency(LATENCY_S)
    assert worker.wait(60) == 0
    assert worker.close_reason == "finished"
    assert_no_outage_logged(worker)
    assert not lines(worker, "WARNING")
    assert crawl.project.count("done") == dict.fromkeys(crawl.site.paths, 1)
    overview = crawl.overview()
    assert (overview.phase, overview.members, overview.run) == ("finished", [], 0)


@pytest.mark.parametrize("what", ["schema", "class"])
def test_a_worker_with_another_version_or_class_is_refused(what: str, fault_crawl: MakeCrawl) -> None:
    """A worker with another version or spider class logs the reason, and the crawl does not change."""
    crawl = fault_crawl(site=SITE, settings=SETTINGS, spider=VERSIONS + SPIDER)
    going = start_first(crawl)
    members = [member.worker_id for member in crawl.overview().members]
    if what == "schema":
        (refused,) = crawl.start(environ={"SCHEMA": "0"})
        says = (f"schema version '{keys.SCHEMA}', this worker has '0'", "SCHEDULER_FLUSH_ON_START")
    else:
        module = "tree_project.spiders.spider"
        (crawl.project.folder / "tree_project" / "spiders" / "spider.py").write_text(OTHER_CLASS)
        (refused,) = crawl.start()
        says = (f"spider class '{module}.ProjectSpider', this worker has '{module}.OtherSpider'", "DQ_CRAWL")
    assert_refused(refused, *says)
    assert_the_crawl_goes_on(crawl, going, members)


def test_two_projects_with_the_same_spider_share_the_crawl(
    fault_crawl: MakeCrawl, make_project: MakeProject
) -> None:
    """Two folders have the same spider and class name. Each page is done once, by one of the workers."""
    crawl = fault_crawl(site=SITE, settings=SETTINGS)
    first = start_first(crawl)
    second = make_project(
        [crawl.site.start_url],
        redis_url=crawl.redis_url,
        settings={**SETTINGS, "DQ_WORKER_TTL": 2, "RECORD_PATH": str(crawl.project.record)},
        name=crawl.project.name,
    ).start_worker()
    second.wait_for_log("] INFO: Crawl '")
    crawl.site.set_latency(LATENCY_S)
    crawl.end_whole(workers=1)
    assert second.wait(10) == 0
    assert second.close_reason == "finished"
    assert "joined run 0 alongside 1 registered worker;" in second.text
    for worker in (first, second):
        assert crawl.project.count("done", pids=[worker.pid]).total() > 10
        assert_no_outage_logged(worker)
