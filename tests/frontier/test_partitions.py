"""Each partition gets its turns and leaves no keys behind. Partitions with similar names stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier.model import MAX_PARTITION_BYTES, Limits, Status, Terms
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    numbers,
    partitions,
    put,
    puts,
    release,
)

A, B, C, D = SLOTS = (b"a", b"b", b"c", b"d")


@pytest.fixture
def crowd(worker: HandWorker) -> HandWorker:
    """Return a worker of a crawl with ten entries in each partition, numbered from 0, 10, 20 and 30."""
    worker.exchange(*(move for i, slot in enumerate(SLOTS) for move in puts(slot, 10, 10 * i)))
    return worker


# Turns


def test_a_big_partition_does_not_delay_small_ones(worker: HandWorker) -> None:
    """Although 900 entries of one site came first, the first ten leases include all other sites."""
    worker.exchange(*puts(A, 900))
    worker.exchange(*(put(1000 + i, partition=b"small %d" % i) for i in range(9)))
    taken = partitions(worker.exchange(want=10))
    assert sorted(taken) == sorted([A, *(b"small %d" % i for i in range(9))])


def test_the_least_recently_served_partition_is_next(crowd: HandWorker) -> None:
    """Two workers take one lease at a time. Each partition is served once before any is served twice."""
    other = HandWorker(crowd.live, "other")
    taken = [partitions(one.exchange(want=1))[0] for one in (crowd, other) * 4]
    assert taken == [*SLOTS, *SLOTS]


def test_partitions_of_which_a_worker_holds_the_fewest_leases_come_first(crowd: HandWorker) -> None:
    """A worker that holds leases of two sites gets the other sites first, then the site with fewer leases."""
    here = {A: (3, 5), B: (1, 5)}
    assert partitions(crowd.exchange(want=4, terms=Terms(here=here))) == [C, D, B, A]


# Nothing is left behind


@pytest.mark.parametrize("limits", [Limits(), Limits(5.0, 1)], ids=["free", "limited"])
def test_an_empty_partition_leaves_nothing_behind(live: LiveFrontier, limits: Limits) -> None:
    """Entries of a hundred partitions are leased, released, quarantined and done. Then no key is left."""
    worker = HandWorker(live, "worker", replace(IDENTITY, limits=limits))
    before = live.key_names()
    worker.exchange(*(put(n, n % 3, partition=b"slot %d" % n) for n in range(100)), put(100, due_in=10.0))
    worker.exchange(*(release(n) for n in worker.take(50)))
    victim = HandWorker(live, "victim", replace(IDENTITY, limits=limits))
    assert victim.take(20)
    worker.reclaim("victim")
    done = 0
    while done < 101:
        live.advance(100)
        taken = worker.take(99)
        assert taken
        worker.exchange(*(ack(n) for n in taken), seeding=1)
        done += len(taken)
    live.advance(100)
    worker.exchange(seeding=1)
    assert live.key_names() == before | {"admitted"}


@pytest.mark.parametrize("name", ["{", "}:meta", "a b", "é", "日本", "x" * MAX_PARTITION_BYTES, "0:", "*[a]"])
def test_a_partition_can_have_any_name(live: LiveFrontier, worker: HandWorker, name: str) -> None:
    """The entries of the partition are limited, released, quarantined and flushed like any others."""
    partition = name.encode()
    live.limit(partition, delay_s=10.0, concurrency=1)
    worker.exchange(*puts(partition, 2), put(5, partition=partition, due_in=10.0))
    victim = HandWorker(live, "victim")
    receipt = victim.exchange(want=2)
    assert [(lease.partition, int(lease.entry_id)) for lease in receipt.leases] == [(partition, 0)]
    worker.reclaim("victim")
    live.advance(100)
    for n in (0, 1, 5):
        assert numbers(worker.exchange(want=9)) == [n]
        worker.exchange(release(n), seeding=1)
        live.advance(100)
        assert numbers(worker.exchange(want=9)) == [n]
        worker.exchange(ack(n), seeding=1)
        live.advance(100)
    assert worker.exchange().status is Status.FINISHED
    worker.leave()
    live.call("flush", [])
    assert live.key_names() == set()


def test_similar_names_are_different_partitions(worker: HandWorker) -> None:
    """Names with a common beginning, neighbouring names and the empty name share no entry."""
    names = [b"", b"a", b"a ", b"a a", b"aa", b"b", b"0:a", "aÿ".encode(), "a\u00a0".encode()]
    for i, name in enumerate(names):
        worker.exchange(*puts(name, 3, 10 * i))
    taken = worker.take(30)
    worker.exchange(*(release(n) for n in taken))
    for i, name in enumerate(names):
        others = {other: (1, 0) for other in names if other != name}
        receipt = worker.exchange(want=9, terms=Terms(here=others))
        assert numbers(receipt) == [10 * i, 10 * i + 1, 10 * i + 2]
        assert set(partitions(receipt)) == {name}
