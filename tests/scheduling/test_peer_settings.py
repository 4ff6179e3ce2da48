"""The settings of a scrapy-redis project have the same meaning in scrapy_dq, or a log line names them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.given import Errors, Look, MakeProject, Tree
from support.project import PLAIN, SPIDER
from support.tree_spider import spider_of
from support.worker import Worker

THEIRS = {
    "SCHEDULER_QUEUE_CLASS": "scrapy_dq.queue.FifoQueue",
    "SCHEDULER_QUEUE_KEY": "%(spider)s:requests",
    "SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter",
    "SCHEDULER_PERSIST": "True",
    "DUPEFILTER_DEBUG": "1",
    "REDIS_ENCODING": "latin-1",
    "REDIS_PARAMS": {"encoding": "utf-8", "retry_on_timeout": True, "redis_cls": "redis.StrictRedis"},
}


def lines(worker: Worker, level: str) -> list[str]:
    """Return the messages of scrapy_dq's modules at *level*."""
    return re.findall(rf"^\S+ \S+ \[scrapy_dq\S*\] {level}: (.*)$", worker.text, re.M)


def test_a_project_of_scrapy_redis_crawls_and_differences_are_reported(tree: Tree, look: Look) -> None:
    """One INFO line lists them. The queue class sets the order. Duplicates are logged. `seen` stays."""
    _, project = tree(settings=THEIRS | {"CONCURRENT_REQUESTS": 1, "LOG_LEVEL": "DEBUG"}, pages=20, fan_out=3)
    worker = project.run_to_end(timeout_s=20)
    assert [event.path for event in project.events() if event.event == "done"] == [
        f"/p/{k}" for k in range(20)
    ]
    [said] = [line for line in lines(worker, "INFO") if "scrapy-redis" in line]
    for part in ("SCHEDULER_QUEUE_KEY, SCHEDULER_DUPEFILTER_KEY", "redis_cls in REDIS_PARAMS"):
        assert part in said
    assert lines(worker, "WARNING") == []
    assert look(project).census.seen == 19


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "not installed"])
def test_a_dupefilter_of_scrapy_redis_is_replaced_with_a_warning(
    tree: Tree, look: Look, installed: bool
) -> None:
    """scrapy-redis's class, or a subclass, would query Redis for each request and block the event loop."""
    named = "scrapy_redis.dupefilter.RFPDupeFilter"
    own = ""
    if installed:
        pytest.importorskip("scrapy_redis")
        own = f"from {named.rpartition('.')[0]} import RFPDupeFilter\nclass Own(RFPDupeFilter): pass\n"
        named = "tree_project.spiders.spider.Own"
    else:
        named = "scrapy_redis.dupefilter.NoSuchFilter"
    site, project = tree(spider=spider_of(own), settings={"DUPEFILTER_CLASS": named}, pages=20)
    worker = project.run_to_end(timeout_s=20)
    assert project.count() == dict.fromkeys(site.paths, 1)
    [said] = lines(worker, "WARNING")
    assert named in said
    assert "scrapy_dq.DupeFilter is used instead" in said
    assert look(project).census.dead == 0


def test_a_remaining_scheduler_of_scrapy_redis_is_warned_about(make_project: MakeProject) -> None:
    """The project's SCHEDULER has precedence over the add-on. So scrapy-redis would run the crawl."""
    project = make_project(
        [],
        settings=PLAIN
        | {"SCHEDULER": "scrapy_redis.scheduler.NoSuchScheduler", "ADDONS": {"scrapy_dq.Addon": 500}},
    )
    worker = project.run_worker(timeout_s=20)
    assert [line for line in lines(worker, "WARNING") if "wins over scrapy_dq.Addon" in line]


@pytest.mark.parametrize("kind", ["Scrapy's", "derived from ours", "DQ_ENABLED = False"])
def test_a_scheduler_that_overrides_the_addon_is_warned_about(tree: Tree, kind: str) -> None:
    """Each worker would crawl the whole site. The user wants this only with DQ_ENABLED = False."""
    spider = "from scrapy_dq import Scheduler\nclass Own(Scheduler): ...\n" + SPIDER
    more = {"SCHEDULER": "tree_project.spiders.spider.Own"} if kind == "derived from ours" else PLAIN
    _, project = tree(
        spider=spider,
        settings=more | {"ADDONS": {"scrapy_dq.Addon": 500}, "DQ_ENABLED": kind != "DQ_ENABLED = False"},
        pages=2,
    )
    said = lines(project.run_to_end(timeout_s=20), "WARNING")
    assert len(said) == (kind == "Scrapy's")
    for line in said:
        assert line.startswith(
            "SCHEDULER = scrapy.core.scheduler.Scheduler wins over scrapy_dq.Addon: requests "
        )
        assert "are not in Redis" in line


@pytest.mark.parametrize("addon", [True, False])
def test_a_bad_dq_enabled_is_refused_with_one_line(
    make_project: MakeProject, errors: Errors, addon: bool
) -> None:
    """The bad value does not turn the scheduler off. The log has one line, and no traceback."""
    more: dict[str, Any] = {"SCHEDULER": None, "ADDONS": {"scrapy_dq.Addon": 500}} if addon else {}
    project = make_project([], redis_url="redis://127.0.0.1:9", settings={"DQ_ENABLED": "no"} | more)
    worker = project.run_worker(timeout_s=20)
    [said] = [line for line in errors(worker) if line.startswith("scrapy_dq.")]
    assert said.endswith(": scrapy_dq cannot start: DQ_ENABLED = 'no': expected True or False")
