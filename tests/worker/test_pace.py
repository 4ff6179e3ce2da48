"""When the next exchange is due, and how many leases it asks for."""

from __future__ import annotations

import time

import pytest

from scrapy_dq.frontier.model import MAX_LEASES
from scrapy_dq.frontier.worker.pace import (
    IDLE_FIRST_S,
    IDLE_LONGEST_S,
    LINGER_S,
    MAX_AHEAD_S,
    MIN_AHEAD_S,
    QUIET_LONGEST_S,
    OneByOne,
    Pace,
)
from scrapy_dq.sharding.pace import MAX_SLOW_S, timing_of
from support.waiting import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("scrapy_dq.frontier.worker.pace.time", clock)
    return clock


@pytest.fixture
def pace(clock: Clock) -> Pace:
    """Return a pace whose engine has leases and whose last exchange has just been answered."""
    pace = Pace()
    pace.granted(wanted=1, leases=1)
    pace.answered(clock.now - 0.001, clock.now)
    return pace


def test_the_first_exchange_is_due_at_once() -> None:
    """A new engine counts as hungry: if an entry or a move waits, its worker exchanges without a pause."""
    assert Pace().due_at(want=8, moves=0, full=False, waiting=1) == 0
    assert Pace().due_at(want=8, moves=1, full=False, waiting=0) == 0
    assert Pace().due_at(want=8, moves=0, full=False, waiting=0) - time.monotonic() <= IDLE_FIRST_S


def test_a_call_during_an_exchange_is_answered_by_the_next_one(pace: Pace, clock: Clock) -> None:
    """A call reports that a command or an entry waits in Redis.

    An exchange that was composed before the call may have been answered without this command or entry.
    """
    began = clock.now
    clock.now += 0.001
    pace.called()
    pace.answered(began, clock.now + 0.001)
    assert pace.due_at(0, moves=0, full=False, waiting=0) == 0
    pace.answered(clock.now, clock.now + 0.001)
    assert pace.due_at(0, moves=0, full=False, waiting=0) > 0


def test_a_move_waits_briefly_for_others(pace: Pace, clock: Clock) -> None:
    """The exchange is due 15 ms after the oldest move, which keeps Redis's cost per request low."""
    clock.now += 0.005
    pace.first_move()
    oldest = clock.now
    clock.now += 0.010
    assert pace.due_at(0, moves=5, full=False, waiting=100) == pytest.approx(oldest + LINGER_S)


def test_moves_made_during_an_exchange_linger_after_its_answer(pace: Pace, clock: Clock) -> None:
    """A busy worker pauses between exchanges, even if moves came during the last one."""
    pace.first_move()
    clock.now += 0.2
    pace.answered(clock.now - 0.2, clock.now)
    assert pace.due_at(0, moves=3, full=False, waiting=0) == pytest.approx(clock.now + LINGER_S)


def test_a_starving_engine_does_not_linger_unless_nothing_was_granted(pace: Pace, clock: Clock) -> None:
    """The worker exchanges at once while an entry or a move waits. If it gets no lease, it backs off."""
    pace.starved = True
    assert pace.due_at(want=4, moves=0, full=False, waiting=1) == 0
    assert pace.due_at(want=4, moves=1, full=False, waiting=0) == 0
    assert pace.due_at(want=0, moves=0, full=False, waiting=1) > clock.now
    pace.granted(wanted=4, leases=0)
    assert pace.due_at(want=4, moves=0, full=False, waiting=1) > clock.now
    pace.first_move()  # this worker has new entries, perhaps for itself
    assert pace.due_at(want=4, moves=1, full=False, waiting=1) == 0


def test_an_idle_worker_backs_off_to_half_a_second_with_jitter(pace: Pace, clock: Clock) -> None:
    """The first pause is 20 ms. It doubles with each exchange without leases, and a grant resets it."""
    for turn in range(12):
        longest = min(IDLE_FIRST_S * 2**turn, IDLE_LONGEST_S)
        pauses = {pace.due_at(4, 0, False, 0) - clock.now for _ in range(20)}
        assert 0.8 * longest - 1e-6 <= min(pauses) <= max(pauses) <= longest + 1e-6
        assert len(pauses) > 5
        pace.granted(wanted=4, leases=0)
    pace.granted(wanted=4, leases=1)
    assert pace.due_at(4, 0, False, 0) - clock.now <= IDLE_FIRST_S + 1e-6


@pytest.fixture
def spread(pace: Pace, clock: Clock) -> Pace:
    """Return the pace of one shard of 12, from which the worker takes a lease each second."""
    pace.timing = timing_of(12)
    for _ in range(40):
        pace.taken()
        clock.now += 1.0
        pace.answered(clock.now - 0.001, clock.now)
    pace.granted(wanted=1, leases=1)
    return pace


def test_with_several_shards_moves_wait_for_the_moves_of_another_lease(spread: Pace, clock: Clock) -> None:
    """A worker leases from each of 12 shards only now and then, so its moves wait for each other.

    Waiting moves are not sent earlier because the worker wants leases.
    """
    clock.now += 5.0
    spread.first_move()
    for want in (0, 3):
        due = spread.due_at(want, moves=2, full=False, waiting=9)
        assert due == pytest.approx(clock.now + 1.0, rel=0.02)


def test_moves_wait_only_briefly_and_not_if_another_worker_needs_them(
    pace: Pace, spread: Pace, clock: Clock
) -> None:
    """The exchange is earlier if a note must be sent, an entry falls due, or the engine is hungry."""
    spread.first_move()
    assert spread.due_at(3, moves=2, full=False, waiting=9, notes=1) - clock.now < 0.3
    spread.expect(0.1, quiet=False)
    assert spread.due_at(3, moves=2, full=False, waiting=9) - clock.now < 0.31
    spread.expect(None, quiet=False)
    clock.now += 60.0
    spread.answered(clock.now - 0.001, clock.now)
    for _ in range(100):
        clock.now += 2.0
        spread.answered(clock.now - 0.001, clock.now)
    spread.first_move()
    assert spread.due_at(0, moves=1, full=False, waiting=9) - clock.now <= MAX_SLOW_S
    spread.starved = True
    assert spread.due_at(3, moves=1, full=False, waiting=9) == 0


def test_a_worker_wants_its_free_slots_and_one_lease_ahead_at_first(pace: Pace) -> None:
    """The worker subtracts the buffer, and wants nothing without capacity."""
    assert pace.want(capacity=8, running=0, buffered=0, usable=0) == 9
    assert pace.want(capacity=8, running=5, buffered=0, usable=0) == 4
    assert pace.want(capacity=8, running=20, buffered=0, usable=0) == 1
    assert pace.want(capacity=8, running=5, buffered=3, usable=3) == 1
    assert pace.want(capacity=8, running=5, buffered=30, usable=30) == 0
    assert pace.want(capacity=0, running=0, buffered=0, usable=0) == 0
    assert pace.want(capacity=10**6, running=0, buffered=0, usable=0) == MAX_LEASES


def test_a_worker_wants_more_leases_ahead_if_redis_is_farther_away(clock: Clock) -> None:
    """With 100 leases/s and 0.1 s per trip, the engine consumes 2 x 0.115 s x 100/s before more arrive."""
    pace = Pace()
    for _ in range(50):
        for _ in range(10):
            pace.taken()
        clock.now += 0.1
        pace.answered(clock.now - 0.1, clock.now)
    assert pace.want(capacity=0, running=0, buffered=0, usable=0) == 0
    assert 22 <= pace.want(capacity=8, running=8, buffered=0, usable=0) <= 25
    for _ in range(50):
        clock.now += 0.1
        pace.answered(clock.now - 0.1, clock.now)
    assert pace.want(capacity=8, running=8, buffered=0, usable=0) == 1


# Due times


def idle(pace: Pace) -> None:
    """Let the worker back off to its longest pause."""
    pace.starved = True
    for _ in range(12):
        pace.granted(wanted=4, leases=0)


@pytest.mark.parametrize(("next_due_s", "quiet"), [(0.2, False), (0.2, True), (3.0, True)])
def test_the_next_exchange_is_shortly_before_something_falls_due(
    pace: Pace, clock: Clock, next_due_s: float, quiet: bool
) -> None:
    """The exchange is earlier by half of the lease-ahead time, which covers a trip and its jitter."""
    idle(pace)
    pace.expect(next_due_s, quiet)
    assert pace.due_at(4, 0, False, 0) - clock.now == pytest.approx(next_due_s - MIN_AHEAD_S / 2)


def test_a_quiet_worker_exchanges_every_ten_seconds(pace: Pace, clock: Clock) -> None:
    """Nothing is due earlier, but a new worker may join."""
    idle(pace)
    pace.expect(1000, True)
    pauses = {pace.due_at(4, 0, False, 0) - clock.now for _ in range(20)}
    assert 0.8 * QUIET_LONGEST_S <= min(pauses) <= max(pauses) <= QUIET_LONGEST_S
    assert len(pauses) > 5
    pace.expect(1000, False)
    assert pace.due_at(4, 0, False, 0) - clock.now <= IDLE_LONGEST_S
    pace.expect(None, False)
    assert pace.due_at(4, 0, False, 0) - clock.now <= IDLE_LONGEST_S


def test_a_due_entry_that_does_not_come_causes_no_storm_of_exchanges(pace: Pace, clock: Clock) -> None:
    """If this worker cannot get the due entry, the pauses between its exchanges do not become shorter."""
    idle(pace)
    for next_due_s in (1e-9, 0.001, MIN_AHEAD_S / 2):
        pace.expect(next_due_s, True)
        assert pace.due_at(4, 0, False, 0) - clock.now == pytest.approx(IDLE_FIRST_S)


def test_leases_are_taken_ahead_by_the_time_of_a_trip(pace: Pace, clock: Clock) -> None:
    """Bounds keep a worker from leasing many turns of a partition with a delay in advance."""
    assert pace.ahead_s == MIN_AHEAD_S
    for trip_s, ahead_s in ((0.2, 2 * (0.2 + LINGER_S)), (5.0, MAX_AHEAD_S)):
        for _ in range(50):
            clock.now += trip_s
            pace.answered(clock.now - trip_s, clock.now)
        assert pace.ahead_s == pytest.approx(ahead_s, rel=1e-3)


# One lease at a time: DQ_STRICT_ORDER


def wants(pace: OneByOne, appended: int, usable: int = 0) -> int:
    return pace.want(16, running=0, buffered=usable, usable=usable, appended=appended)


def test_later_puts_are_not_sent_before_the_request_of_the_engine_is_answered() -> None:
    """Otherwise the engine would get a request that Scrapy's own scheduler would not have yet."""
    pace = OneByOne()
    assert pace.lease_missed(3)
    assert not pace.lease_missed(5)
    assert (wants(pace, 7), pace.until, pace.due_at(1, 7, full=False, waiting=0)) == (1, 3, 0)
    pace.granted(1, 0, confirmed=2)  # the answer to an exchange from before both requests
    assert pace.until == 3
    pace.granted(1, 0, confirmed=3)
    assert (wants(pace, 7), pace.until) == (1, 5)
    pace.granted(1, 1, confirmed=5)
    assert (wants(pace, 7), pace.until) == (0, None)


def test_nothing_is_leased_until_the_engine_asks_after_the_moves() -> None:
    """After new moves, the worker leases nothing until the engine asks again."""
    pace = OneByOne()
    pace.lease_missed(3)
    pace.granted(1, 0, confirmed=3)
    assert (wants(pace, 3), wants(pace, 4)) == (1, 0)
    pace.lease_missed(4)
    assert (wants(pace, 4), wants(pace, 4, usable=1)) == (1, 0)


@pytest.mark.parametrize("asks_again", [False, True])
def test_a_request_after_dropped_moves_is_answered_like_any_other(asks_again: bool) -> None:
    """A rejoin has dropped some of the moves, so they will never be confirmed."""
    pace = OneByOne()
    pace.lease_missed(9)
    if asks_again:
        pace.lease_missed(5)
    assert (wants(pace, 5), pace.until) == (1, None)
    pace.granted(1, 0, confirmed=5)
    assert pace.due_at(1, 0, full=False, waiting=1) > 0
