"""Functions that count the leases, journals and feed items that tests of crews compare."""

from __future__ import annotations

from pathlib import Path

from crew.conftest import Scene
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from support.crew_process import CrewProcess, paths_of
from support.redis_server import RedisServer
from support.waiting import wait_until


def held_by(redis: RedisServer, scene: Scene, pid: int | None = None) -> int:
    """Return the number of leases of the process *pid*, or of all processes."""
    with connect_url(redis.url) as client:
        members = peek(client, scene.project.name).members
    return sum(member.in_flight for member in members if pid in (None, member.identity["pid"]))


def repeats(scene: Scene) -> int:
    """Assert that the feed has an item of each page. Return the number of repeated items."""
    found = paths_of(scene.feed)
    assert set(found) == scene.site.paths
    return found.total() - len(found)


def journals(scene: Scene, kind: str = "journal") -> list[Path]:
    """Return the journals that are not exported yet, or with *kind* "exported" the exported journals."""
    return sorted(scene.project.folder.glob(f".scrapy/dq/items/*/*.{kind}"))


def assert_tidy(scene: Scene) -> None:
    """Assert that no unfinished file is beside the feed, and that all items of journals are in feeds."""
    assert not list(scene.feed.parent.glob(".*.new"))
    assert not journals(scene)


def start_and_wait(scene: Scene, *words: str, part: float = 0.2) -> CrewProcess:
    """Start a crew of two, and wait until *part* of the site is done."""
    crew = scene.crew("-w", "2", "-o", "items.jsonl", *words)
    goal = scene.done() + part * len(scene.site.paths)
    wait_until(lambda: scene.done() >= goal or not crew.running, f"{goal} pages are done", 30)
    assert crew.running, crew.err
    return crew
