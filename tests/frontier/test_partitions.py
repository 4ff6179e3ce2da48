"""Partitions: each has its turn, none leaves anything behind; whatever their names hold, they stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier.model import (
    MAX_PARTITION_BYTES,
    Limits,
    Status,
    Terms,
)
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
    """Return the worker: in each of four partitions ten entries wait, numbered from 0, 10, 20 and 30."""
    worker.exchange(*(move for i, slot in enumerate(SLOTS) for move in puts(slot, 10, 10 * i)))
    return worker


# Whose turn it is


def test_a_big_partition_does_not_delay_small_ones(worker: HandWorker) -> None:
    """Hundreds of one site were there before: one of each of the others comes with the first ten."""
    worker.exchange(*puts(A, 900))
    worker.exchange(*(put(1000 + i, partition=b"small %d" % i) for i in range(9)))
    taken = partitions(worker.exchange(want=10))
    assert sorted(taken) == sorted([A, *(b"small %d" % i for i in range(9))])


def test_leases_are_shared_evenly(crowd: HandWorker) -> None:
    """A worker that wants twelve gets three of each of four partitions, in the order of each."""
    assert sorted(numbers(crowd.exchange(want=12))) == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_what_a_small_partition_leaves_goes_to_the_others(worker: HandWorker) -> None:
    """Of one, two and twenty entries, twelve leases are one, two and nine."""
    worker.exchange(*puts(A, 20), *puts(B, 1, 100), *puts(C, 2, 200))
    taken = partitions(worker.exchange(want=12))
    assert [taken.count(slot) for slot in (A, B, C)] == [9, 1, 2]


def test_the_least_recently_served_partition_is_next(crowd: HandWorker) -> None:
    """One lease at a time, by any worker: each partition in turn, and no two of one before all had one."""
    other = HandWorker(crowd.live, "other")
    taken = [partitions(one.exchange(want=1))[0] for one in (crowd, other) * 4]
    assert taken == [*SLOTS, *SLOTS]


def test_a_new_partition_waits_for_those_that_wait(worker: HandWorker) -> None:
    """A new partition goes behind those that have not had their turn, and before one that is served again."""
    worker.exchange(*puts(A, 2), *puts(B, 2, 10))
    assert numbers(worker.exchange(want=1)) == [0]
    worker.exchange(*puts(C, 2, 20))
    assert [numbers(worker.exchange(want=1))[0] for _ in range(4)] == [10, 1, 20, 11]


def test_a_newcomer_does_not_move_its_partition(worker: HandWorker) -> None:
    """Where something waits already, another rank or what comes back leaves the turn as it is."""
    worker.exchange(*puts(A, 3), *puts(B, 3, 10), want=3)
    worker.exchange(release(0), put(100, 5, partition=A))
    before = worker.live.state()["turns"]
    worker.exchange(put(101, -5, partition=A), put(102, partition=B))
    assert worker.live.state()["turns"] == before


# What a worker can take


def test_no_more_of_one_partition_than_most(crowd: HandWorker) -> None:
    """A worker that can start two of a site at once takes two, though it wants many."""
    assert numbers(crowd.exchange(want=20, terms=Terms(most=2))) == [0, 1, 10, 11, 20, 21, 30, 31]


def test_what_it_has_nothing_of_comes_first(crowd: HandWorker) -> None:
    """A worker that is busy with two sites begins with the others, then those of which it holds least."""
    here = {A: (3, 5), B: (1, 5)}
    assert partitions(crowd.exchange(want=4, terms=Terms(here=here))) == [C, D, B, A]


def test_no_more_of_a_partition_than_there_is_room_for(crowd: HandWorker) -> None:
    """Room is said of each that it holds; `most` is for the others."""
    taken = partitions(crowd.exchange(want=20, terms=Terms(most=3, here={A: (1, 1), B: (4, 0)})))
    assert [taken.count(slot) for slot in SLOTS] == [1, 0, 3, 3]


def test_partitions_without_room_hide_no_others(crowd: HandWorker) -> None:
    """The first three in the rotation are skipped, and keep their turn."""
    here = {A: (1, 0), B: (1, 0), C: (1, 0)}
    assert numbers(crowd.exchange(want=1, terms=Terms(here=here))) == [30]
    assert numbers(crowd.exchange(want=1)) == [0]


def test_a_partition_where_nothing_waits_may_be_in_here(crowd: HandWorker) -> None:
    """A worker tells of all that it holds, whether there is more of it or not."""
    assert len(numbers(crowd.exchange(want=4, terms=Terms(here={b"elsewhere": (2, 2)})))) == 4


# Nothing is left behind


@pytest.mark.parametrize("limits", [Limits(), Limits(5.0, 1)], ids=["free", "limited"])
def test_an_empty_partition_leaves_nothing_behind(live: LiveFrontier, limits: Limits) -> None:
    """A hundred partitions come, are leased from, released to, quarantined and gone: so are their keys."""
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
def test_a_partition_may_have_any_name(live: LiveFrontier, worker: HandWorker, name: str) -> None:
    """Its entries wait, come back, are suspected, limited and flushed like any others."""
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


def test_no_name_stands_for_another(worker: HandWorker) -> None:
    """Names that begin like others, sort beside them or are empty share no entry."""
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


# Suspects


def test_a_worker_holds_one_suspect_of_all_partitions(live: LiveFrontier, worker: HandWorker) -> None:
    """Suspects of three partitions run one by one, what waits beside them runs on, and each has its turn."""
    worker.exchange(*(put(n, partition=SLOTS[n]) for n in range(3)))
    victim = HandWorker(live, "victim")
    assert victim.take(3) == [0, 1, 2]
    worker.reclaim("victim")
    worker.exchange(put(10, partition=A), put(11, partition=D))
    other = HandWorker(live, "other")
    assert len(suspects(worker.take(9))) == 1
    [mine] = suspects(int(i) for i in worker.held)
    [theirs] = suspects(other.take(9))
    assert worker.held | other.held >= {b"%012d" % n for n in (10, 11)}
    assert numbers(worker.exchange(ack(mine), want=9)) == [3 - mine - theirs]


def suspects(taken: object) -> list[int]:
    return [n for n in taken if n < 10]


def test_a_partition_with_suspects_alone_has_its_turn(crowd: HandWorker) -> None:
    """It is in line with the others, not behind them all."""
    crowd.exchange(put(100, partition=b"poisonous"))
    victim = HandWorker(crowd.live, "victim")
    here = dict.fromkeys(SLOTS, (1, 0))
    assert numbers(victim.exchange(want=1, terms=Terms(here=here))) == [100]
    crowd.reclaim("victim")
    assert [numbers(crowd.exchange(want=1))[0] for _ in range(6)] == [0, 10, 20, 30, 100, 1]
