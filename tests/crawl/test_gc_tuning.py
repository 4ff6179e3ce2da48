"""`DQ_TUNE_GC` changes Python's garbage collector in a worker of `scrapy crawl`."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from support.given import MakeProject, StartRedis, StartSite
from support.tree_spider import spider_of

TELLS = spider_of("""
    def parse(self, response):
        self.logger.info("The collector: %s, %s", gc.get_threshold(), gc.get_freeze_count() > 10_000)
""")
TWO_CRAWLS = """\
import gc

from scrapy_dq import gc_tuning

gc_tuning.freeze()
frozen = gc.get_freeze_count()
more = [[] for _ in range(1000)]
gc_tuning.freeze()
assert 1000 < gc.get_freeze_count() <= frozen
gc_tuning.release()
assert 1000 < gc.get_freeze_count() <= frozen
gc_tuning.release()
assert gc.get_freeze_count() == 0
"""


@pytest.mark.parametrize("tuned", [True, False])
def test_objects_from_before_the_crawl_are_not_collected(
    start_redis: StartRedis,
    start_site: StartSite,
    make_project: MakeProject,
    tuned: bool,
) -> None:
    """With DQ_TUNE_GC = False, such objects are collected. The thresholds are Python's in both cases."""
    site, settings = start_site(pages=1), {"DQ_TUNE_GC": tuned}
    project = make_project([site.start_url], redis_url=start_redis().url, settings=settings, spider=TELLS)
    # With its own environment, the worker is a new process, not a fork of a process that has frozen its
    # objects.
    worker = project.run_to_end(environ={"PYTHONUNBUFFERED": "1"})
    assert f"The collector: {gc.get_threshold()}, {tuned}" in worker.text


@pytest.mark.unit
def test_the_last_crawl_of_a_process_leaves_the_collector_as_it_was() -> None:
    """Otherwise reference cycles of an earlier crawl would stay in memory."""
    subprocess.run([sys.executable, "-c", TWO_CRAWLS], check=True, timeout=60)
