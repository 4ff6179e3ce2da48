"""Crawls that store their requests with the project's own serializer."""

from __future__ import annotations

from typing import Any

import pytest

from crawl.conftest import Plant
from scrapy_dq.codec.formats import SERIALIZED
from support.given import MakeProject, StartRedis
from support.waiting import wait_until


@pytest.mark.parametrize(
    "settings",
    [{"SCHEDULER_SERIALIZER": "json"}, {"SCHEDULER_SERIALIZER": "pickle", "DQ_TRUST_PICKLE": True}],
    ids=["json", "pickle"],
)
def test_a_crawl_with_its_own_serializer_is_complete(settings: dict[str, Any], plant: Plant) -> None:
    """Redis stores the requests in the serializer's format, and each page is crawled once."""
    settings |= {"DQ_PARTITION_BY": "none", "DQ_ORDER": "fifo", "CONCURRENT_REQUESTS": 4}
    redis, site, project = plant(settings=settings, pages=60, latency_s=0.02)
    worker = project.start_worker()
    with redis.client() as client:
        backlog = f"dq:{{{project.name}}}:backlog:0:"
        element = wait_until(lambda: client.lindex(backlog, 0), "a request waits", 20)
    assert element[20] == SERIALIZED  # the format byte follows the sequence number and the id
    assert worker.wait(60) == 0
    assert worker.close_reason == "finished"
    assert set(project.count("done").values()) == {1}
    assert set(project.count("done")) == site.paths
    assert worker.text.count("DQ_TRUST_PICKLE is set") == ("DQ_TRUST_PICKLE" in settings)
    assert "dq/unencodable" not in worker.stats


def test_pickle_that_is_not_trusted_stops_the_crawl_before_it_begins(
    start_redis: StartRedis, make_project: MakeProject
) -> None:
    """One ERROR line names the solution. The worker sends no command to Redis."""
    redis = start_redis()
    project = make_project(["http://127.0.0.1:9/"], redis_url=redis.url)
    worker = project.run_worker(settings={"SCHEDULER_SERIALIZER": "scrapy_redis.picklecompat"})
    (line,) = [line for line in worker.text.splitlines() if "[scrapy_dq.scheduling.session] ERROR" in line]
    assert "SCHEDULER_SERIALIZER = scrapy_redis.picklecompat: its loads() is not among" in line
    assert "DQ_TRUST_PICKLE = True" in line
    with redis.client() as client:
        assert client.dbsize() == 0
