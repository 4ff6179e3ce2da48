"""Local requests: their order, due times and parents, and how they share downloads with leases."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request

from scrapy_dq.frontier.model import Limits
from scrapy_dq.scheduling import downloads, local_queue
from scrapy_dq.scheduling.downloads import MARGIN_S, Downloads
from scrapy_dq.scheduling.local_queue import LocalQueue
from scrapy_dq.scheduling.partitions import OneSlot
from support.waiting import Clock

A, B, C = b"a.com", b"b.com", b"c.com"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(local_queue, "time", clock)
    monkeypatch.setattr(downloads, "time", clock)
    return clock


def request(name: str, priority: int = 0) -> Request:
    return Request(f"http://a.com/{name}", priority=priority)


def first(partitions: Iterable[bytes]) -> bytes | None:
    return next(iter(partitions), None)


def drain(queue: LocalQueue) -> list[str]:
    found = []
    while (popped := queue.pop(first)) is not None:
        found.append(popped[0].url.rpartition("/")[2])
    return found


def test_the_newest_request_of_the_highest_priority_comes_first() -> None:
    """Scrapy's own memory queue has the same order."""
    queue = LocalQueue()
    for name, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        queue.push(request(name, priority), A, ())
    assert drain(queue) == ["d", "b", "c", "a"]


def test_a_request_that_is_not_due_waits_and_is_counted(clock: Clock) -> None:
    """A queue with only delayed requests is not empty, so its crawl is not finished."""
    queue = LocalQueue()
    queue.push(request("late"), A, (), clock.now + 5)
    queue.push(request("early"), A, (), clock.now + 2)
    queue.push(request("now"), A, ())
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


def test_a_due_request_takes_the_place_of_its_priority(clock: Clock) -> None:
    """Once a request is due, its priority decides its place. Several requests may have the same due time."""
    queue = LocalQueue()
    for name, priority in (("low", -1), ("high", 1), ("same", 1)):
        queue.push(request(name, priority), A, (), clock.now + 1)
    clock.now += 1
    queue.push(request("plain"), A, ())
    assert drain(queue) == ["same", "high", "plain", "low"]


def test_a_delayed_request_holds_its_parents_until_it_is_done(clock: Clock) -> None:
    """If the worker crashes before the request is done, the parents run again."""
    queue = LocalQueue()
    delayed, plain = request("delayed"), request("plain")
    queue.push(delayed, A, [b"one", b"two"], clock.now + 5)
    queue.push(plain, A, [b"two"])
    assert delayed in queue
    assert queue.parents(delayed) == {b"one", b"two"}
    assert queue.pop(first) == (plain, A)
    assert list(queue.done(plain)) == []
    assert queue.holds(b"one")
    clock.now += 5
    assert queue.pop(first) == (delayed, A)
    assert queue.holds(b"one")
    assert set(queue.done(delayed)) == {b"one", b"two"}
    assert delayed not in queue


class Here(Downloads):
    """Downloads with room for two requests per partition. Timers are recorded instead of started."""

    def __init__(self, limits: Limits | None = None, slots: Any = None, most: int = 8) -> None:
        self.woken = 0
        self.timers: list[float] = []
        self.blocked: list[tuple[bytes, float]] = []
        slots = slots or SimpleNamespace(limit=lambda partition: 2)
        block = self.blocked.append
        super().__init__(slots, limits or Limits(), self._woken, lambda *what: block(what), most)

    def _woken(self) -> None:
        self.woken += 1

    def _wake_at(self, moment: float) -> None:
        self.timers.append(moment)

    def local(self, partition: bytes) -> Request:
        """Begin the download of a local request."""
        made = request("local")
        self.begin_local(made, partition)
        return made

    def lease(self, partition: bytes, *, timed: bool = False) -> Request:
        """Begin the download of a leased request."""
        made = request("lease")
        self.begin(made, partition, timed=timed)
        return made


def test_partitions_take_turns_and_keep_their_own_order() -> None:
    """The partition with the fewest downloads goes first; among equals, the one that waited longest."""
    here, queue = Here(), LocalQueue()
    for partition, names in ((A, "012"), (B, "34"), (C, "5")):
        for name in names:
            queue.push(request(name), partition, ())
    here.lease(C)
    found = []
    while (taken := queue.pop(here.choose)) is not None:
        here.begin_local(*taken)
        found.append(taken[0].url[-1])
    assert found == ["2", "4", "5", "1", "3"]
    assert len(queue) == 1


def test_local_requests_and_leases_share_the_room_of_a_partition() -> None:
    """When a download ends while a local request waits for room, the engine is woken."""
    here = Here()
    first, second = here.local(A), here.lease(A)
    assert (here.limit(A), here.limit(B)) == (1, 2)
    assert here.choose([A]) is None
    assert not here.woken
    here.ended(second)
    here.ended(second)
    assert here.woken == 1
    assert here.choose([A]) == A
    here.ended(first)
    assert here.limit(A) == 2


def test_a_request_held_up_by_a_middleware_takes_no_room() -> None:
    """A held-up request may wait for a local request, such as a login.

    But if its site has a delay, no other request to the site is sent before it.
    """
    here = Here(Limits(own={"b.com": (5.0, None)}))
    for held_up in here.lease(A), here.lease(A), here.lease(B, timed=True):
        here.held_up(held_up)
    assert here.choose([A]) == A
    assert here.choose([B]) is None


def test_requests_held_up_by_a_middleware_leave_a_quarter_for_other_sites() -> None:
    """Otherwise requests that wait for an unanswered robots.txt would take all downloads."""
    here = Here()
    waiting = [here.lease(A) for _ in range(2)]
    for _ in range(4):
        assert here.held_up(waiting[0])
        waiting.append(waiting.pop(0))
        waiting.append(here.lease(A))
    assert not here.held_up(waiting[-1])
    assert here.partition_of(waiting[-1]) == A
    assert here.held_up(here.lease(B))
    here.ended(waiting[0])
    assert here.held_up(waiting[-1])


def test_requests_held_up_by_a_middleware_leave_room_for_one_more() -> None:
    """Held-up requests may wait for another request, such as a login.

    So one download stays free for that request, even if the others fill three quarters of the downloads.
    """
    here = Here(most=2)
    first, second = here.lease(A), here.lease(A)
    assert here.held_up(first)
    login = here.lease(A)
    assert not here.held_up(second)
    assert here.partition_of(login) == A


def test_local_requests_and_leases_take_turns() -> None:
    """Local requests go first if they have fewer downloads than leases, or if there is only one partition."""
    here = Here()
    assert here.local_turn
    ended = here.local(A)
    assert not here.local_turn
    here.lease(B)
    assert here.local_turn
    here.lease(C)
    here.local(C)
    assert not here.local_turn
    here.ended(ended)
    assert here.local_turn
    single = Here(slots=OneSlot())
    single.local(b"")
    assert single.local_turn


def test_local_requests_and_leases_together_keep_the_concurrency() -> None:
    """Local requests reduce the room for leases, because the frontier does not count them."""
    here = Here(Limits(concurrency=1, own={"b.com": (None, 0)}))
    assert [here.limit(p) for p in (A, B)] == [2, 2]
    here.local(A)
    here.local(B)
    assert [here.limit(p) for p in (A, B)] == [0, 1]
    assert here.choose([A, B]) == B


def test_a_partition_waits_for_its_delay_after_the_last_request_was_sent(
    clock: Clock,
) -> None:
    """The delay begins when a request is sent. The next local request waits MARGIN_S longer than a lease."""
    here = Here(Limits(delay_s=5.0))
    lease = here.lease(A, timed=True)
    assert here.choose([A]) is None
    here.sent(lease)
    clock.now += 1
    here.ended(lease)  # the delay began when the lease was sent
    assert here.choose([A]) is None
    assert here.timers[-1] == clock.now + 4
    clock.now += 4
    assert here.choose([A]) == A
    local = here.local(A)
    assert here.limit(A) == 0
    assert here.choose([A]) is None
    here.ended(local)  # nothing reported when it was sent, so the delay begins now
    assert here.blocked == [(A, 5.0)]
    assert here.choose([A, B]) == B
    clock.now += 5
    assert here.choose([A]) is None
    clock.now += MARGIN_S
    assert here.choose([A]) == A


def test_a_block_of_a_partition_also_applies_to_local_requests(clock: Clock) -> None:
    """A local request waits for the end of the block, even if the delay ends earlier."""
    here = Here(Limits(delay_s=5.0))
    local = here.local(A)
    here.block(A, 60.0)
    here.ended(local)
    clock.now += 59
    assert here.choose([A]) is None
    assert here.timers[-1] == clock.now + 1
    clock.now += 1
    assert here.choose([A]) == A


def test_partitions_that_no_longer_rest_are_forgotten(clock: Clock) -> None:
    """Only partitions that still rest are remembered, however many were blocked."""
    here = Here()
    for number in range(100):
        here.block(b"%d.com" % number, 3.0)
        clock.now += 1
    assert len(here._rest) <= 10
