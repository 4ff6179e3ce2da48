"""Redis applies an exchange once, in sequence, and only from a member that is not fenced."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Admission, FrontierUnavailable, Status
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, decline, fail, numbers, put, release

pytestmark = pytest.mark.parametrize("partitioning", ["none", "own"], indirect=True)

RESYNC = Receipt(Status.RESYNC)
LOST = Receipt(Status.LOST)


def test_puts_are_applied_before_other_moves(live: LiveFrontier) -> None:
    """A full Redis refuses the whole exchange.

    Redis checks the memory only before a script's first write. If this were the ack, Redis would accept the
    put after it.
    """
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
def test_stored_entries_can_be_moved_in_a_full_redis(live: LiveFrontier, what: str) -> None:
    """Redis checks `maxmemory` only before a script's first write. After that, the script may exceed it."""
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
    """After a lost reply, the worker sends the same bytes again. Redis repeats its answer, but no move."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t"), want=0)
    first = worker.exchange(put(2), put(3, admission=Admission.SEEN, token=b"t"), put(4), want=2)
    before = live.dump()
    for _ in range(3):
        assert worker.send(worker.last) == first
    assert live.dump() == before
    assert first.dropped == (1,)


@pytest.mark.parametrize("seq", [0, 2, 5, 100])
def test_only_the_next_exchange_is_applied(live: LiveFrontier, worker: HandWorker, seq: int) -> None:
    """A number other than the last (3) or the next (4) means that Redis or the worker is out of step."""
    for n in range(3):
        worker.exchange(put(n))
    before = live.dump()
    assert worker.exchange(put(10), want=1, seq=seq) == RESYNC
    assert live.dump() == before


@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_wrong_count_of_leases_is_refused(live: LiveFrontier, worker: HandWorker, held: int) -> None:
    """After a roll-back, a late copy may have the right number. Then only its count of leases is wrong."""
    worker.exchange(put(1), put(2), put(3), want=2)
    before = live.dump()
    assert worker.exchange(ack(1), want=1, held=held) == RESYNC
    assert live.dump() == before


# Only from a member of this frontier and run


def test_a_fenced_worker_must_rejoin(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """After the fence, even a worker that is alive cannot put, settle or lease."""
    worker.exchange(put(1), put(2), want=1)
    other.fence("worker")
    before = live.dump()
    assert worker.exchange(ack(1), put(3), want=1) == RESYNC
    assert live.dump() == before


def test_a_frontier_that_is_gone_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """A missing frontier does not count as finished, and an exchange does not create it."""
    worker.exchange(put(1))
    live.roll_back({})
    assert worker.exchange(put(2)) == LOST
    assert worker.send(worker.last) == LOST
    assert live.dump() == {}


def test_another_frontier_of_the_same_name_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """A crawl that was flushed and started again has another epoch, so an old worker's moves are ignored."""
    live.roll_back({})
    HandWorker(live, "worker").exchange(put(1), put(2), want=1)
    before = live.dump()
    assert worker.exchange(put(3), seq=2, held=1) == LOST
    assert live.dump() == before


def test_a_zombie_of_an_older_run_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """A worker that was frozen at the end of its run cannot put into the next run, open it or end it."""
    worker.exchange()
    other = HandWorker(live, "other")
    assert other.run == worker.run + 1
    before = live.dump()
    assert worker.exchange(put(1), want=1) == Receipt(Status.FINISHED)
    assert live.dump() == before


def test_a_worker_of_a_forgotten_run_is_out_of_step(live: LiveFrontier, worker: HandWorker) -> None:
    """If Redis is rolled back to a time before the run, the worker must rejoin. Its run is not over."""
    before = live.dump()
    assert worker.exchange(put(1), run=1) == RESYNC
    assert live.dump() == before


def test_a_repeat_of_a_large_exchange_returns_the_same_leases(live: LiveFrontier, worker: HandWorker) -> None:
    """The repeat has the same leases, whether their bytes or their number limited the exchange."""
    worker.exchange(*(put(n, payload=b"x" * 300_000) for n in range(14)))
    worker.exchange(*(put(n) for n in range(14, 1_014)))
    first = worker.exchange(want=1_000)
    assert 10 < len(first.leases) < 20
    assert worker.send(worker.last).leases == first.leases
    worker.exchange(*(ack(n) for n in numbers(first)))
    rest = worker.exchange(want=1_000)
    assert len(rest.leases) == 1_000
    assert worker.send(worker.last).leases == rest.leases
