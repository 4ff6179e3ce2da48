"""An exchange: applied once, in sequence, by a worker in good standing, or answered and changing nothing."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Admission, FrontierUnavailable, Status
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, decline, fail, numbers, put, release

pytestmark = pytest.mark.parametrize("partitioning", ["none", "own"], indirect=True)

RESYNC = Receipt(Status.RESYNC)
LOST = Receipt(Status.LOST)


# What an exchange does


def test_puts_are_applied_before_what_settles(live: LiveFrontier) -> None:
    """At `maxmemory` the exchange is refused as a whole; an ack in front would write, and let puts pass."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), want=1)
    before = live.dump()
    live.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(FrontierUnavailable, match="memory is full"):
            worker.exchange(ack(1), put(2), want=1)
    finally:
        live.redis.config_set("maxmemory", 0)
    assert live.dump() == before
    assert numbers(worker.exchange(ack(1), put(2), want=1)) == [2]


FULL = {
    "release": lambda worker: worker.exchange(release(1)),
    "fail": lambda worker: worker.exchange(fail(1)),
    "bury": lambda worker: worker.exchange(bury(1)),
    "decline": lambda worker: worker.exchange(decline(1)),
    "lease": lambda worker: worker.exchange(want=1),
    "fall due": lambda worker: worker.exchange(),
    "leave": HandWorker.leave,
    "drain": lambda worker: HandWorker.drain(worker, "dead"),
}


@pytest.mark.parametrize("what", FULL)
def test_what_is_stored_is_moved_in_a_full_redis(live: LiveFrontier, what: str) -> None:
    """A script that has written may exceed `maxmemory`, which is checked before its first write only."""
    dead, worker = HandWorker(live, "dead"), HandWorker(live, "worker")
    worker.exchange(put(1), put(2), put(3), put(4, due_in=50), want=1)
    dead.take(1)
    worker.fence("dead")
    live.advance(60 * (what == "fall due"))
    live.redis.config_set("maxmemory", 1)
    try:
        FULL[what](worker)
    finally:
        live.redis.config_set("maxmemory", 0)
    assert not live.redis.hexists(live.key("meta"), "torn")
    live.state()


# Once, and in sequence


def test_a_repeat_gets_the_stored_reply(live: LiveFrontier, worker: HandWorker) -> None:
    """After a lost reply the same bytes with the same number are not applied again, and answered the same."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t"), want=0)
    first = worker.exchange(put(2), put(3, admission=Admission.SEEN, token=b"t"), put(4), want=2)
    before = live.dump()
    for _ in range(3):
        assert worker.send(worker.last) == first
    assert live.dump() == before
    assert first.dropped == (1,)


@pytest.mark.parametrize("seq", [0, 2, 5, 100])
def test_only_the_next_exchange_is_applied(live: LiveFrontier, worker: HandWorker, seq: int) -> None:
    """A number that is neither the last (3) nor the next (4): Redis or the worker is out of step."""
    for n in range(3):
        worker.exchange(put(n))
    before = live.dump()
    assert worker.exchange(put(10), want=1, seq=seq) == RESYNC
    assert live.dump() == before


@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_wrong_count_of_leases_is_refused(live: LiveFrontier, worker: HandWorker, held: int) -> None:
    """A late copy may fit the sequence after Redis stepped back; only the count of leases shows it."""
    worker.exchange(put(1), put(2), put(3), want=2)
    before = live.dump()
    assert worker.exchange(ack(1), want=1, held=held) == RESYNC
    assert live.dump() == before


# In good standing


def test_a_fenced_worker_is_told_to_rejoin(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """From the fence on, a worker wrongly presumed dead neither puts, settles nor leases."""
    worker.exchange(put(1), put(2), want=1)
    other.fence("worker")
    before = live.dump()
    assert worker.exchange(ack(1), put(3), want=1) == RESYNC
    assert live.dump() == before


def test_a_frontier_that_is_gone_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """An absent frontier is never considered finished, and an exchange does not make one."""
    worker.exchange(put(1))
    live.roll_back({})
    assert worker.exchange(put(2)) == LOST
    assert worker.send(worker.last) == LOST
    assert live.dump() == {}


def test_another_frontier_of_the_same_name_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """A crawl that was flushed and started again has another epoch: an old worker's moves are ignored."""
    live.roll_back({})
    HandWorker(live, "worker").exchange(put(1), put(2), want=1)
    before = live.dump()
    assert worker.exchange(put(3), seq=2, held=1) == LOST
    assert live.dump() == before


def test_a_zombie_of_an_older_run_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """A worker that slept through the end of its run cannot put into the next one, nor open or end it."""
    worker.exchange()
    other = HandWorker(live, "other")
    assert other.run == worker.run + 1
    before = live.dump()
    assert worker.exchange(put(1), want=1) == Receipt(Status.FINISHED)
    assert live.dump() == before


def test_a_run_that_was_forgotten_is_out_of_step(live: LiveFrontier, worker: HandWorker) -> None:
    """A roll-back may pass the start of the run: the worker rejoins, it is not at its end."""
    before = live.dump()
    assert worker.exchange(put(1), run=1) == RESYNC
    assert live.dump() == before


def test_a_repeat_brings_all_that_a_large_exchange_has_brought(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The repeat has the same limits as the exchange."""
    worker.exchange(*(put(n, payload=b"x" * 300_000) for n in range(14)))
    worker.exchange(*(put(n) for n in range(14, 1_014)))
    first = worker.exchange(want=1_000)
    assert 10 < len(first.leases) < 20
    assert worker.send(worker.last).leases == first.leases
    worker.exchange(*(ack(n) for n in numbers(first)))
    rest = worker.exchange(want=1_000)
    assert len(rest.leases) == 1_000
    assert worker.send(worker.last).leases == rest.leases
