"""The benchmarks give no figures for an incomplete crawl, and their driver leaves no requests behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scrapy_dq.frontier import peek
from support.redis_server import RedisServer

ROOT = Path(__file__).parents[1]


def run(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python in the root of the project, because `benchmarks` is not installed with the package."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_an_incomplete_crawl_gives_no_figures() -> None:
    """The benchmark stops if a page was not crawled exactly once, or if the crawl did not finish."""
    code = """
from benchmarks.crawl import PAGES, _check
pages = [str(n) for n in range(PAGES)]
_check("whole", ["finished"], pages, False)
_check("stopped", ["closespider_timeout"], pages[:100], True)
for name, reason, paths in [
    ("short", "finished", pages[1:]), ("double", "finished", pages + ["7"]), ("ended", "shutdown", pages)
]:
    try:
        _check(name, [reason], paths, False)
    except RuntimeError as error:
        print(error)
"""
    done = run("-c", code)
    assert done.stdout.splitlines() == [
        "short: of 5000 pages 1 were never crawled, 0 twice; closed with ['finished']",
        "double: of 5000 pages 0 were never crawled, 1 twice; closed with ['finished']",
        "ended: of 5000 pages 0 were never crawled, 0 twice; closed with ['shutdown']",
    ], done.stderr


def test_a_scheduler_can_be_driven_without_a_crawl() -> None:
    """The driver uses internals of scrapy_dq. It must leave no request waiting or in flight."""
    with RedisServer() as server, server.client() as client:
        plan = {
            "scheduler": "scrapy_dq.Scheduler", "settings": {"REDIS_URL": server.url}, "requests": 100,
            "phases": ["new", "known", "taken"], "redis_url": server.url,
        }  # fmt: skip
        found = json.loads(run("-m", "benchmarks.drive", json.dumps(plan)).stdout)
        assert {name: phase["requests"] for name, phase in found.items()} == dict.fromkeys(
            plan["phases"], 100
        )
        census = peek(client, "sample").census
        assert (census.done, census.in_flight, census.waiting) == (100, 0, 0)


@pytest.mark.soak
def test_the_memory_of_a_worker_is_bounded_over_a_million_pages() -> None:
    """The worker remembers LOCAL_SEEN fingerprints at most, but Scrapy's filter remembers every URL."""
    with RedisServer() as server:
        plan: dict[str, Any] = {"requests": 1_000_000, "phases": ["crawled"]}
        # The replay log keeps the puts of the last DQ_ROLLBACK_HORIZON seconds. With the default of 10 s, it
        # would need more memory on a faster machine.
        ours = plan | {
            "scheduler": "scrapy_dq.Scheduler",
            "settings": {"REDIS_URL": server.url, "DQ_ROLLBACK_HORIZON": 1},
            "redis_url": server.url,
        }
        theirs = plan | {"scheduler": "scrapy.core.scheduler.Scheduler", "settings": {}}
        done = [run("-m", "benchmarks.drive", json.dumps(each), timeout_s=3600) for each in (ours, theirs)]
    sizes = [[size // 2**20 for size in json.loads(each.stdout)["crawled"]] for each in done]
    print("MiB at the start and after each tenth: scrapy_dq, Scrapy in memory:", *sizes)
    assert sizes[0][-1] - sizes[0][1] < 64
    assert sizes[0][-1] < sizes[1][-1]
