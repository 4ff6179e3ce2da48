"""The entries of a dead worker run again one by one. Further deaths are charged; too many bury the entry."""

from __future__ import annotations

import msgpack
import pytest

from scrapy_dq.frontier import keys
from support.live_frontier import HandWorker, LiveFrontier, ack, entry_id, numbers, put, release

pytestmark = pytest.mark.parametrize("partitioning", ["none", "one"], indirect=True)


@pytest.fixture
def suspects(live: LiveFrontier, worker: HandWorker) -> list[int]:
    """Return [1, 2, 3], the entries whose worker has died. Entries 4 and 5 were never leased."""
    worker.exchange(*(put(n) for n in range(1, 6)))
    victim = HandWorker(live, "victim")
    assert victim.take(3) == [1, 2, 3]
    worker.reclaim("victim")
    return [1, 2, 3]


def test_the_first_death_is_not_charged(live: LiveFrontier, suspects: list[int]) -> None:
    """Redis does not know which entry killed the worker. So all are quarantined, and none is charged."""
    entries = live.state()["entries"]
    assert {int(i): (charged, suspect) for i, (_, charged, suspect, _) in entries.items()} == {
        1: (0, True), 2: (0, True), 3: (0, True), 4: (0, False), 5: (0, False),
    }  # fmt: skip


def test_a_worker_holds_one_suspect_at_a_time(worker: HandWorker, suspects: list[int]) -> None:
    """The first suspect is served at its place. The other suspects are skipped until it is settled."""
    assert worker.take(10) == [1, 4, 5]
    assert numbers(worker.exchange(ack(4), ack(5), want=10)) == []
    assert numbers(worker.exchange(ack(1), want=10)) == [2]


@pytest.mark.parametrize("suspect", [1, 2])
def test_suspects_and_released_entries_are_merged(
    live: LiveFrontier, worker: HandWorker, suspect: int
) -> None:
    """A suspect and a released entry are served in their original order."""
    victim = HandWorker(live, "victim")
    worker.exchange(put(1), put(2), put(3))
    for n in (1, 2):
        assert (victim if n == suspect else worker).take(1) == [n]
    worker.reclaim("victim")
    worker.exchange(release(3 - suspect))
    assert worker.take(9) == [1, 2, 3]


def test_a_released_suspect_stays_a_suspect(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """If a worker releases a suspect or leaves, no attempt is charged, and the entry stays a suspect."""
    worker.take(1)
    worker.exchange(release(1))
    assert live.state()["entries"][entry_id(1)] == ("backlog", 0, True, b"payload")
    worker.take(1)
    worker.leave()
    assert live.state()["entries"][entry_id(1)] == ("backlog", 0, True, b"payload")
    other = HandWorker(live, "other")
    assert other.take(9) == [1, 4, 5]


def test_rejoin_keeps_the_suspect_and_its_slot(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """A worker that holds a suspect gets no second one after its rejoin."""
    worker.take(1)
    worker.rejoin("worker-2")
    assert worker.take(9) == [4, 5]
    assert numbers(worker.exchange(ack(1), want=9)) == [2]


def suspected(live: LiveFrontier) -> list[int]:
    return sorted(int(i) for i, (_, _, suspect, _) in live.state()["entries"].items() if suspect)


@pytest.mark.parametrize("back", [False, True])
def test_leases_lost_with_two_workers_that_stay_away_are_suspects(
    live: LiveFrontier, worker: HandWorker, back: bool
) -> None:
    """The leases of one silent worker do not become suspects, because this worker may only be cut off.

    They become suspects if a second worker falls silent with them while the first one is still away.
    """
    worker.exchange(*(put(n) for n in range(1, 5)))
    first, second = HandWorker(live, "first"), HandWorker(live, "second")
    assert first.take(2) == [1, 2]
    worker.fence("first")
    assert worker.drain("first") == (2, 0, 0)
    assert suspected(live) == []
    assert second.take(3) == [1, 2, 3]
    if back:
        first.rejoin("first again")
    worker.fence("second")
    assert worker.drain("second") == (3, 0, 0)
    assert suspected(live) == ([] if back else [1, 2])


def test_a_suspect_is_buried_with_the_reason_at_the_limit(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """A dead letter keeps the reason, the time, the worker, the attempts and the payload."""
    for n in range(3):
        victim = HandWorker(live, f"victim-{n}")
        assert victim.take(1) == [1]
        assert worker.fence(victim.worker_id) == "OK"
        assert worker.drain(victim.worker_id, max_attempts=3) == ((1, 0, 0) if n < 2 else (0, 1, 0))
    letter = live.redis.hget(keys.prefix(live.crawl) + "dead", entry_id(1))
    reason, died_ms, worker_id, charged, place, payload, _ = msgpack.unpackb(letter, raw=True)
    assert b"3 times" in reason
    assert died_ms > 1_700_000_000_000
    assert (worker_id, charged, len(place), payload) == (b"victim-2", 3, 16, b"payload")
    assert worker.take(9) == [2, 4, 5]


def test_a_repeated_exchange_returns_the_attempts_of_a_suspect(
    worker: HandWorker, suspects: list[int], live: LiveFrontier
) -> None:
    """Redis stores the attempts and the suspect mark in one byte. A repeat returns only the attempts."""
    victim = HandWorker(live, "victim")
    victim.take(1)
    worker.reclaim("victim")
    receipt = worker.exchange(want=1)
    assert worker.send(worker.last) == receipt
    assert receipt.leases[0].attempts == 1
