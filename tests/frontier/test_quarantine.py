"""What died with its worker runs again alone: only what dies there is charged, and past the limit buried."""

from __future__ import annotations

import msgpack
import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Lease
from support.live_frontier import (
    HandWorker,
    LiveFrontier,
    ack,
    bury,
    entry_id,
    numbers,
    partition_of,
    put,
    release,
)

pytestmark = pytest.mark.parametrize("partitioning", ["none", "one"], indirect=True)


def attempts(live: LiveFrontier) -> dict[int, int]:
    """Return the attempts charged to each entry."""
    return {int(i): charged for i, (_, charged, *_) in live.state()["entries"].items()}


@pytest.fixture
def suspects(live: LiveFrontier, worker: HandWorker) -> list[int]:
    """Entries 1, 2 and 3 died with their worker; 4 and 5 were never leased."""
    worker.exchange(*(put(n) for n in range(1, 6)))
    victim = HandWorker(live, "victim")
    assert victim.take(3) == [1, 2, 3]
    worker.reclaim("victim")
    return [1, 2, 3]


def test_the_first_death_is_not_charged(live: LiveFrontier, suspects: list[int]) -> None:
    """Who died among many is not known: all come back uncharged, in quarantine."""
    entries = live.state()["entries"]
    assert {int(i): (charged, suspect) for i, (_, charged, suspect, _) in entries.items()} == {
        1: (0, True), 2: (0, True), 3: (0, True), 4: (0, False), 5: (0, False),
    }  # fmt: skip


def test_a_worker_holds_one_suspect_at_a_time(worker: HandWorker, suspects: list[int]) -> None:
    """The best suspect is served at its place, the others are skipped until it is settled."""
    assert worker.take(10) == [1, 4, 5]
    assert numbers(worker.exchange(ack(4), ack(5), want=10)) == []
    assert numbers(worker.exchange(ack(1), want=10)) == [2]


@pytest.mark.parametrize("settle", [ack, bury])
def test_a_settled_suspect_makes_room_at_once(
    worker: HandWorker, suspects: list[int], settle: object
) -> None:
    """The exchange that settles one suspect may lease the next."""
    assert worker.take(1) == [1]
    assert numbers(worker.exchange(settle(1), want=1)) == [2]


def test_each_worker_has_a_quarantine_of_its_own(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """Suspects run one per worker, not one per crawl."""
    other = HandWorker(live, "other")
    assert numbers(worker.exchange(want=1)) == [1]
    assert numbers(other.exchange(want=1)) == [2]


def test_a_suspect_is_served_at_its_place(worker: HandWorker, suspects: list[int]) -> None:
    """Between what was put before and after it, not first and not last."""
    assert worker.take(1) == [1]
    worker.exchange(ack(1))
    assert worker.take(2) == [2, 4]
    worker.exchange(release(4), ack(2))
    assert worker.take(9) == [3, 4, 5]


@pytest.mark.parametrize("suspect", [1, 2])
def test_suspects_and_released_entries_are_merged(
    live: LiveFrontier, worker: HandWorker, suspect: int
) -> None:
    """Of a suspect and an entry that was released, the one that stood first goes first."""
    victim = HandWorker(live, "victim")
    worker.exchange(put(1), put(2), put(3))
    for n in (1, 2):
        assert (victim if n == suspect else worker).take(1) == [n]
    worker.reclaim("victim")
    worker.exchange(release(3 - suspect))
    assert worker.take(9) == [1, 2, 3]


def test_a_released_suspect_stays_one(live: LiveFrontier, worker: HandWorker, suspects: list[int]) -> None:
    """A worker that stops as it should charges nothing, but clears nobody either."""
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
    """Under its new id too, a worker that holds a suspect gets no second one."""
    worker.take(1)
    worker.rejoin("worker-2")
    assert worker.take(9) == [4, 5]
    assert numbers(worker.exchange(ack(1), want=9)) == [2]


def test_rejoin_gives_a_suspect_back_uncharged(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """A suspect whose lease the worker never learned of returns to quarantine as it was."""
    worker.take(1)
    worker.rejoin("worker-2", held=[])
    assert live.state()["entries"][entry_id(1)] == ("backlog", 0, True, b"payload")
    assert worker.take(9) == [1, 4, 5]


def test_only_what_dies_in_quarantine_is_charged(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """The suspect of a dead worker is charged; what it held beside is suspected now, and uncharged."""
    victim = HandWorker(live, "victim")
    assert victim.take(9) == [1, 4, 5]
    worker.reclaim("victim")
    assert attempts(live) == {1: 1, 2: 0, 3: 0, 4: 0, 5: 0}
    assert worker.exchange(want=9).leases == (Lease(entry_id(1), 1, b"payload", partition_of(1)),)


def test_a_repeat_tells_the_attempts_of_a_suspect(
    worker: HandWorker, suspects: list[int], live: LiveFrontier
) -> None:
    """The stored reply names the attempts, not the mark beside them."""
    victim = HandWorker(live, "victim")
    victim.take(1)
    worker.reclaim("victim")
    receipt = worker.exchange(want=1)
    assert worker.send(worker.last) == receipt
    assert receipt.leases[0].attempts == 1


def test_at_the_limit_it_is_buried_with_the_reason(
    live: LiveFrontier, worker: HandWorker, suspects: list[int]
) -> None:
    """A dead letter keeps why, when, where, how often and the payload."""
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


def test_a_poisonous_entry_is_buried_and_no_other(live: LiveFrontier) -> None:
    """Whoever takes entry 7 dies: after 1 + 3 deaths it is buried, and all others are done, uncharged."""
    observer = HandWorker(live, "observer")
    observer.exchange(*(put(n) for n in range(20)), seeding=1)
    done, deaths = set(), 0
    while len(done) < 19:
        victim = HandWorker(live, f"victim-{deaths}")
        while 7 not in (taken := victim.take(5)) and taken:
            victim.exchange(*(ack(n) for n in taken))
            done.update(taken)
        if taken:
            deaths += 1
            assert deaths <= 4
            observer.reclaim(victim.worker_id)
            assert all(charged == 0 for n, charged in attempts(live).items() if n != 7)
        else:
            victim.leave()
    assert deaths == 4
    state = live.state()
    assert [(int(i), charged) for i, (_, charged, _) in state["dead"].items()] == [(7, 3)]
    assert state["entries"] == {}
    assert state["done"] == 19


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_the_limit_is_the_number_of_charged_deaths(
    live: LiveFrontier, worker: HandWorker, max_attempts: int
) -> None:
    """max_attempts deaths in quarantine, after the uncharged one, bury an entry."""
    worker.exchange(put(1))
    deaths = 0
    while not live.state()["dead"]:
        victim = HandWorker(live, f"victim-{deaths}")
        assert victim.take(1) == [1]
        worker.reclaim(victim.worker_id, max_attempts)
        deaths += 1
    assert deaths == 1 + max_attempts
