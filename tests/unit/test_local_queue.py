"""The queue of requests that stay in their worker: order, due times, and the parents they hold."""

from __future__ import annotations

import pytest
from scrapy import Request

from scrapy_dq.scheduling import local_queue as module
from scrapy_dq.scheduling.local_queue import LocalQueue


class Clock:
    """A clock that stands where a test puts it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def request(name: str, priority: int = 0) -> Request:
    return Request(f"http://a.com/{name}", priority=priority)


def drain(queue: LocalQueue) -> list[str]:
    found = []
    while (popped := queue.pop()) is not None:
        found.append(popped.url.rpartition("/")[2])
    return found


def test_the_newest_of_the_highest_priority_comes_first() -> None:
    """As Scrapy's own memory queue serves."""
    queue = LocalQueue()
    for name, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        queue.push(request(name, priority), ())
    assert drain(queue) == ["d", "b", "c", "a"]


def test_what_is_not_due_waits_and_is_counted(clock: Clock) -> None:
    """A crawl with only delayed requests left is not at its end."""
    queue = LocalQueue()
    queue.push(request("late"), (), clock.now + 5)
    queue.push(request("early"), (), clock.now + 2)
    queue.push(request("now"), ())
    assert len(queue) == 3
    assert drain(queue) == ["now"]
    assert len(queue) == 2
    clock.now += 2
    assert drain(queue) == ["early"]
    clock.now += 2.999
    assert drain(queue) == []
    clock.now += 0.001
    assert drain(queue) == ["late"]
    assert len(queue) == 0


def test_what_is_due_takes_the_place_that_its_priority_gives_it(clock: Clock) -> None:
    """Equal times do not compare requests, which cannot be compared."""
    queue = LocalQueue()
    for name, priority in (("low", -1), ("high", 1), ("same", 1)):
        queue.push(request(name, priority), (), clock.now + 1)
    clock.now += 1
    queue.push(request("plain"), ())
    assert drain(queue) == ["same", "high", "plain", "low"]


def test_a_delayed_request_holds_its_parents_until_it_is_done(clock: Clock) -> None:
    """A crash before that runs them again."""
    queue = LocalQueue()
    delayed, plain = request("delayed"), request("plain")
    queue.push(delayed, [b"one", b"two"], clock.now + 5)
    queue.push(plain, [b"two"])
    assert delayed in queue
    assert queue.parents(delayed) == {b"one", b"two"}
    assert queue.pop() is plain
    assert list(queue.done(plain)) == []
    assert queue.holds(b"one")
    clock.now += 5
    assert queue.pop() is delayed
    assert queue.holds(b"one")
    assert set(queue.done(delayed)) == {b"one", b"two"}
    assert delayed not in queue
