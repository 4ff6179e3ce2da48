"""A crew's items survive random kills of its processes, and roll-backs of Redis."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from csv import DictReader
from typing import Any

import psutil
import pytest

from crew.conftest import Scene, SetScene
from crew.outcome import held_by, journals
from support.crew_process import CrewProcess, alive, wait_for_ends
from support.given import Figures, MakeProject, StartSite
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.tree_spider import spider_of
from support.waiting import wait_until

EACH = 3
"""Items per page. With several items, a kill can come between two of them."""
SPIDER = spider_of(f"""
    def parse(self, response):
        yield from response.follow_all(css="a", callback=self.parse)
        path = page_path(response)
        for n in range({EACH}):
            yield {{"path": path, "n": n}}
        self.record("done", path)
""")
SLOW = """
import time


class Slow:
    def __init__(self, options):
        pass

    def accepts(self, item):
        time.sleep(0.0005)
        return True
"""
FEEDS: dict[str, dict[str, Any]] = {
    "all.jsonl": {"format": "jsonlines", "item_filter": "tree_project.slow.Slow"},
    "all.csv.gz": {"format": "csv", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]},
    "batch-%(batch_id)d.jsonl": {"format": "jsonlines", "batch_item_count": 50},
}


@pytest.fixture
def scene(fault_redis: RedisServer, start_site: StartSite, make_project: MakeProject) -> Iterator[SetScene]:
    """Yield a function that makes a Scene. Its arguments are further settings, and options of the site."""
    with ExitStack() as stack:

        def make(more: dict[str, Any] | None = None, **tree: Any) -> Scene:
            site = start_site(**tree)
            # Workers are killed at random, and more than three of the killed ones may hold the same suspect.
            settings = {
                "CONCURRENT_REQUESTS": 4, "DQ_SHUTDOWN_GRACE": 1, "DQ_MAX_ATTEMPTS": 100, "DQ_WORKER_TTL": 2,
                "FEEDS": FEEDS, "ITEM_PIPELINES": {},
                **(more or {}),
            }  # fmt: skip
            url = fault_redis.url
            made = make_project([site.start_url], redis_url=url, settings=settings, spider=SPIDER)
            (made.folder / "tree_project" / "slow.py").write_text(SLOW)
            return Scene(site, made, stack)

        yield make


def items_of(scene: Scene) -> dict[str, Counter[tuple[str, int]]]:
    """Return how often each kind of feed contains each item."""
    folder = scene.project.folder
    with gzip.open(folder / "all.csv.gz", "rt") as file:
        found = {"csv": list(DictReader(file))}
    batches = folder.glob("batch-*.jsonl")
    for kind, paths in (("jsonl", [folder / "all.jsonl"]), ("batches", batches)):
        found[kind] = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {kind: Counter((item["path"], int(item["n"])) for item in items) for kind, items in found.items()}


def kill_all(crew: CrewProcess) -> None:
    """Kill the parent, its workers and its export processes."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(crew.pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    crew.kill()
    wait_for_ends(crew.pids, 5)


@pytest.mark.parametrize(
    ("kills", "of_exports"), [(3, 1), pytest.param(65, 10, marks=pytest.mark.soak)], ids=["4", "75"]
)
def test_random_kills_lose_no_item(scene: SetScene, figures: Figures, kills: int, of_exports: int) -> None:
    """The test kills workers, the parent, all processes or the export. The feeds have each item once."""
    rng = random.Random(kills)
    here = scene(pages=60 + 30 * kills, latency_s=0.05)
    crew = here.crew("-w", "3")
    for _ in range(kills):
        goal = here.done() + rng.randint(1, 15)
        wait_until(lambda crew=crew, goal=goal: here.done() >= goal or not crew.running, "pages are done", 60)
        assert crew.running, crew.err + crew.out
        workers = [pid for pid in crew.pids if alive(pid)]
        victim = rng.choice(["a worker", "all workers", "the parent", "all of them"])
        if victim == "the parent":
            crew.kill()
            wait_for_ends(workers, 5)
        elif victim == "all of them":
            kill_all(crew)
        else:
            for pid in workers[: 1 if victim == "a worker" else None]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not crew.running:
            crew = here.crew("-w", "3")
    building = here.project.folder / ".all.jsonl.new"
    killed = 0
    for _ in range(of_exports):
        wait_until(lambda crew=crew: building.exists() or not crew.running, "the export begins", 240)
        time.sleep(rng.uniform(0, 0.3))
        killed += crew.running
        kill_all(crew)
        if not journals(here):
            break
        crew = here.crew("-w", "3")
    else:
        assert crew.wait(120) == 0, crew.err + crew.out
    expected = dict.fromkeys(((path, n) for path in here.site.paths for n in range(EACH)), 1)
    for kind, found in items_of(here).items():
        assert found == expected, kind
    assert not journals(here)
    figures(None, pages=len(here.site.paths), kills=kills, of_exports=killed, lost=0, twice=0)


def test_a_roll_back_of_redis_loses_no_item(
    scene: SetScene, fault_redis: RedisServer, figures: Figures
) -> None:
    """Pages that run again write their items again. No other item is repeated, and no item is missing."""
    here = scene(pages=300, latency_s=0.05)
    crew = here.crew("-w", "2")
    may_be_twice = rolled_back(here, fault_redis)
    assert crew.wait(120) == 0, crew.err + crew.out
    for kind, found in items_of(here).items():
        assert set(found) == {(path, n) for path in here.site.paths for n in range(EACH)}, kind
        twice = {path for (path, _), count in found.items() if count > 1}
        assert max(found.values()) <= 2
        assert len(twice) <= may_be_twice, kind
    figures(None, pages=300, lost=0, twice=len(twice), may_be_twice=may_be_twice)


def rolled_back(scene: Scene, redis: RedisServer) -> int:
    """Roll Redis back by half a second, when a third of the pages are done.

    Return how many pages may write their items twice: the leases at the snapshot, plus the pages done after
    it.
    """
    wait_until(lambda: scene.done() >= len(scene.site.paths) // 3, "a third of the pages are done", 60)
    leases, before = held_by(redis, scene), scene.project.count("done")
    snapshot = redis.snapshot()
    time.sleep(0.5)
    redis.roll_back(snapshot)
    again = scene.project.count("done") - before
    return leases + len(again)


def test_items_in_redis_survive_its_roll_back_and_a_kill(
    scene: SetScene, fault_redis: RedisServer, figures: Figures
) -> None:
    """With DQ_ITEMS = "redis", workers send lost messages again, and the export takes each message once."""
    here = scene({"ADDONS": {"scrapy_dq.Addon": 500}, "DQ_ITEMS": "redis"}, pages=300, latency_s=0.05)
    workers = here.project.start_workers(3)
    may_be_twice = rolled_back(here, fault_redis)
    workers[0].kill()
    for worker in workers[1:]:
        assert worker.wait(120) == 0
    assert run_dq(here.project, "items", here.project.name, "--export").returncode == 0
    for kind, found in items_of(here).items():
        assert set(found) == {(path, n) for path in here.site.paths for n in range(EACH)}, kind
        twice = {path for (path, _), count in found.items() if count > 1}
        assert len(twice) <= may_be_twice, kind
    figures(None, pages=300, lost=0, twice=len(twice), may_be_twice=may_be_twice)
