"""Workers die at the most dangerous places of the code. No page is lost, and few pages run twice."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from support.fail_points import EXTENSIONS, FEW_LEASES, fail_at
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GO, SLOW_START
from support.given import MakeCrawl
from support.outages import lines
from support.worker import Worker

PAGES = 200


@pytest.fixture
def crawl(fault_crawl: MakeCrawl) -> FaultCrawl:
    """Return a crawl whose workers can have fail points."""
    return fault_crawl(site={"pages": PAGES}, settings=EXTENSIONS)


def await_death(crawl: FaultCrawl, worker: Worker) -> int:
    """Wait until *worker* has died at its fail point, and return the number of its leases.

    No other worker runs that could reclaim these leases.
    """
    assert worker.wait(30) == -signal.SIGKILL, worker.text[-3000:]
    crawl.killed.add(worker.pid)
    leases = crawl.leases({worker.pid})
    crawl.leases_at_kills += leases
    return leases


def assert_the_next_worker_finishes(crawl: FaultCrawl) -> Worker:
    """Start a worker, and assert that it finishes the crawl and logs what it has reclaimed."""
    held = {m.worker_id: m.in_flight for m in crawl.overview().members}
    (last,) = crawl.start()

    crawl.end_whole(crawl.leases_at_kills, workers=1)
    overview = crawl.overview()
    assert (overview.phase, overview.members, overview.census.dead) == ("finished", [], 0)
    for worker_id, leases in held.items():
        told = f"{worker_id} is dead (its process on this machine is gone): {leases} requests reclaimed"
        assert last.text.count(told) == 1
    assert last.stats.get("dq/reclaimed", 0) == sum(held.values())
    assert not lines(last, "WARNING", "ERROR", "CRITICAL")
    return last


def times(place: str, once: int, *soak: int) -> list[Any]:
    """Return test parameters: *place*, and at which pass a worker dies there (*soak*: in long tests only)."""
    return [pytest.param(place, once)] + [pytest.param(place, n, marks=pytest.mark.soak) for n in soak]


@pytest.mark.parametrize(
    ("place", "on_pass"),
    [
        *times("before the exchange is sent", 6, 2, 15),
        *times("after the exchange", 6, 2, 15),
        *times("after the lease", 5, 1, 12),
        *times("inside the callback", 30, 3, 71),
        *times("inside a pipeline", 20, 1, 60),
    ],
)
def test_no_page_is_lost_when_a_worker_dies_while_it_crawls(
    place: str, on_pass: int, crawl: FaultCrawl
) -> None:
    """The next worker finishes the crawl. At most the dead worker's leases are processed twice."""
    (victim,) = crawl.start(environ=fail_at(place, on_pass))
    leases = await_death(crawl, victim)

    assert leases > 0 or on_pass <= 2
    assert_the_next_worker_finishes(crawl)


@pytest.mark.parametrize(("place", "on_pass"), times("in the middle of start()", 40, 10, 80))
def test_no_start_request_is_lost_when_a_worker_dies_in_the_middle_of_start(
    place: str, on_pass: int, fault_crawl: MakeCrawl
) -> None:
    """The next worker's start() yields all requests again. Redis drops the ones that were stored."""
    crawl = fault_crawl(
        site={"pages": 100, "fan_out": 0},
        settings=EXTENSIONS | {"PAGES": 100},
        spider=SLOW_START,
    )
    (crawl.project.folder / GO).touch()
    (victim,) = crawl.start(environ=fail_at(place, on_pass))
    await_death(crawl, victim)
    assert crawl.done

    last = assert_the_next_worker_finishes(crawl)

    # Redis knew at least half of the requests that the dead worker had yielded.
    assert on_pass // 2 <= last.stats["dq/seeds/known"] < on_pass


@pytest.mark.parametrize(
    ("place", "on_pass"),
    [*times("between fence and drain", 1, 1, 1), *times("between two steps of the drain", 1, 2, 3)],
)
def test_an_interrupted_reclaim_is_resumed(place: str, on_pass: int, crawl: FaultCrawl) -> None:
    """One worker is killed. A second dies while it reclaims the first. A third worker gets all requests."""
    (first,) = crawl.start()
    crawl.wait_for_part(0.2)
    crawl.kill(first)
    assert crawl.leases_at_kills > FEW_LEASES * (on_pass + 1)
    (second,) = crawl.start(environ=fail_at(place, on_pass))
    assert await_death(crawl, second) == 0
    drained = FEW_LEASES * on_pass if place == "between two steps of the drain" else 0
    (fenced,) = [member for member in crawl.overview().members if member.fenced]
    assert fenced.in_flight == crawl.leases_at_kills - drained

    assert_the_next_worker_finishes(crawl)


@pytest.mark.parametrize(
    ("place", "on_pass"),
    [
        *times("as the close begins", 1, 1, 1),
        *times("before the leave", 1, 1, 1),
        *times("after the leave", 1, 1, 1),
    ],
)
def test_no_page_is_lost_when_a_worker_dies_while_it_closes(
    place: str, on_pass: int, crawl: FaultCrawl
) -> None:
    """A worker gets SIGTERM, and dies before or after it has left the crawl. The next worker continues."""
    (victim,) = crawl.start(environ=fail_at(place, on_pass))
    crawl.wait_for_part(0.2)
    victim.terminate()
    leases = await_death(crawl, victim)
    # Later in the close, pages in progress are done and acked, and the buffer is released.
    assert leases == 0 or place == "as the close begins"
    assert len(crawl.overview().members) == (place != "after the leave")
    assert crawl.overview().census.waiting > 0

    assert_the_next_worker_finishes(crawl)
