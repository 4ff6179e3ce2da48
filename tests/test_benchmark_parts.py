"""What `make bench` drives without a crawl: a scheduler, whose memory is measured as well."""

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


def run(*words: str, timeout_s: float = 120) -> Any:
    """Run Python where `benchmarks` can be imported, and return the JSON that it prints."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, stdout=subprocess.PIPE, timeout=timeout_s, check=True
    )
    return json.loads(done.stdout)


def test_a_scheduler_can_be_driven_without_a_crawl() -> None:
    """What the driver knows of our insides is there: nothing it puts or settles stays behind."""
    with RedisServer() as server, server.client() as client:
        plan = {
            "scheduler": "scrapy_dq.Scheduler", "settings": {"REDIS_URL": server.url}, "requests": 100,
            "phases": ["new", "known", "taken"], "redis_url": server.url,
        }  # fmt: skip
        found = run("-m", "benchmarks.drive", json.dumps(plan))
        assert {name: phase["requests"] for name, phase in found.items()} == dict.fromkeys(
            plan["phases"], 100
        )
        census = peek(client, "sample").census
        assert (census.done, census.in_flight, census.waiting) == (100, 0, 0)


@pytest.mark.soak
def test_the_memory_of_a_worker_over_a_million_pages() -> None:
    """It grows by what it remembers, which is bounded (LOCAL_SEEN); Scrapy's filter knows every URL."""
    with RedisServer() as server:
        plan: dict[str, Any] = {"requests": 1_000_000, "phases": ["crawled"]}
        ours = plan | {
            "scheduler": "scrapy_dq.Scheduler",
            "settings": {"REDIS_URL": server.url},
            "redis_url": server.url,
        }
        theirs = plan | {"scheduler": "scrapy.core.scheduler.Scheduler", "settings": {}}
        found = [run("-m", "benchmarks.drive", json.dumps(each), timeout_s=3600) for each in (ours, theirs)]
    sizes = [[size // 2**20 for size in each["crawled"]] for each in found]
    print("MiB at the start and after each tenth: scrapy_dq, Scrapy in memory:", *sizes)
    assert sizes[0][-1] - sizes[0][1] < 64
    assert sizes[0][-1] < sizes[1][-1]
