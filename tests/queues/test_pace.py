"""The worker of a Queue: when it talks to Redis, and how many leases it requests."""

from __future__ import annotations

import time

from scrapy_dq.frontier.worker.pace import IDLE_FIRST_S, IDLE_LONGEST_S, LINGER_S
from scrapy_dq.queue.pace import OnDemand


def pace(*, urgent: bool = False, waits: bool = False) -> OnDemand:
    made = OnDemand(lambda: urgent, lambda: waits)
    made.answered(time.monotonic(), time.monotonic())
    return made


def pause(made: OnDemand, want: int = 0, moves: int = 0, full: bool = False) -> float:
    return made.due_at(want, moves, full, 0) - time.monotonic()


def test_a_call_that_waits_is_answered_at_once() -> None:
    """An exchange is also due if the outbox is full, or if a lease is buffered that no caller waits for."""
    assert pace(urgent=True).due_at(0, 0, False, 0) == 0.0
    assert pace().due_at(0, 0, True, 0) == 0.0
    left = pace()
    assert left.want(0, 0, 1, 1) == 0
    assert left.due_at(0, 0, False, 0) == 0.0


def test_a_queue_takes_one_lease_for_each_caller_and_none_in_advance() -> None:
    """The speed of the callers makes no difference. A buffered lease belongs to a caller that waits."""
    made = pace()
    for _ in range(100):
        made.taken()
    made.answered(time.monotonic() - 1, time.monotonic())
    assert [made.want(3, 50, 0, 0), made.want(3, 0, 2, 0), made.want(0, 0, 0, 0)] == [3, 1, 0]


def test_a_single_settlement_waits_briefly_for_others() -> None:
    """A single ack waits up to 15 ms for other moves."""
    made = pace()
    made.first_move()
    assert 0 < pause(made, moves=1) <= LINGER_S


def test_pauses_grow_while_nothing_comes() -> None:
    """Pauses grow from 20 ms to 0.5 s, and a call or a lease resets them. Without a caller, they are long."""
    made = pace(waits=True)
    assert 0.5 * IDLE_FIRST_S < pause(made, 1) <= IDLE_FIRST_S
    for _ in range(9):
        made.granted(1, 0)
    assert 0.7 * IDLE_LONGEST_S < pause(made, 1) <= IDLE_LONGEST_S
    made.called()
    assert made.due_at(1, 0, False, 0) == 0.0
    made.answered(time.monotonic(), time.monotonic())
    assert 0.5 * IDLE_FIRST_S < pause(made, 1) <= IDLE_FIRST_S
    made.granted(1, 0)
    made.granted(1, 1)
    assert pause(made, 1) <= IDLE_FIRST_S
    assert pause(pace()) > 0.7 * IDLE_LONGEST_S
