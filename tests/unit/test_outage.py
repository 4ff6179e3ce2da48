"""The log lines about an outage: their texts and their number."""

from __future__ import annotations

import logging
from itertools import count
from unittest.mock import Mock

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ReadOnlyError, ResponseError

from scrapy_dq.frontier.errors import unavailable
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.worker.outage import Outage


def test_a_refusal_after_an_outage_is_also_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Redis answers again, but refuses. A user who knows only of the outage would wait in vain."""
    caplog.set_level(logging.INFO)
    outage = Outage("It goes on")
    for _ in range(3):
        outage.began(FrontierUnavailable("Redis does not answer"))
    for _ in range(3):
        outage.began(FrontierRefused("Its memory is full"))
    outage.began(FrontierUnavailable("Redis does not answer"))
    outage.ended(5)
    assert [line.partition(" after")[0] for line in caplog.messages] == [
        "Redis does not answer. It goes on",
        "Its memory is full. It goes on",
        "Redis is back",
    ]


def test_many_short_outages_are_reported_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is often reset would fill the log. A longer outage is reported early."""
    caplog.set_level(logging.INFO)
    clock = Mock(monotonic=Mock(return_value=100.0))
    monkeypatch.setattr("scrapy_dq.frontier.worker.outage.time", clock)
    outage = Outage("It goes on")

    def reset(at: float, *, lasts_s: float = 0.5) -> None:
        clock.monotonic.return_value = at
        outage.began(FrontierUnavailable("reset"))
        clock.monotonic.return_value = at + lasts_s
        outage.began(FrontierUnavailable("reset"))
        outage.ended(0)

    for second in range(100, 200):
        reset(second)
    reset(210.0, lasts_s=6.0)
    assert [line.replace("; 0 moves were kept", "") for line in caplog.messages] == [
        "reset. It goes on", "Redis is back after 0.5 s",
        "reset (short outages before it: 59). It goes on", "Redis is back after 0.5 s",
        "reset (short outages before it: 39). It goes on", "Redis is back after 6.0 s",
    ]  # fmt: skip


def test_pauses_double_up_to_2_s_and_the_end_of_an_outage_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    clock = count(100.0, 2.5)
    monkeypatch.setattr("scrapy_dq.frontier.worker.outage.time", Mock(monotonic=lambda: next(clock)))
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    outage = Outage()
    outage.began(FrontierUnavailable("Redis does not answer"))
    assert [outage.delay_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    outage.ended(5)
    assert caplog.messages[-1] == "Redis is back after 2.5 s; 5 moves were kept"


FULL = "OOM command not allowed when used memory > 'maxmemory'"


@pytest.mark.parametrize(
    ("error", "answers"),
    [(ResponseError(FULL), True), (NoPermissionError("NOPERM"), True), (ReadOnlyError("READONLY"), False),
     (ConnectionError("reset"), False), (TimeoutError("late"), False)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_only_a_refusal_of_all_workers_counts_as_an_answer(error: Exception, answers: bool) -> None:
    """A full Redis refuses every worker. A read-only Redis may have a master that serves other workers."""
    outage = Outage()
    for _ in range(2):
        try:
            raise unavailable(error) from error
        except FrontierUnavailable as found:
            outage.began(found)
        assert (outage.unanswered is None) == answers
