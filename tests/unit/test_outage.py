"""What an outage says, and how often."""

from __future__ import annotations

import logging

import pytest

from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.worker.outage import Outage


def test_a_refusal_after_an_outage_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    """Redis is back and wants something: who only knows that it was away would wait for ever."""
    caplog.set_level(logging.INFO)
    outage = Outage("It goes on")
    for _ in range(3):
        outage.began(FrontierUnavailable("Redis does not answer"))
    for _ in range(3):
        outage.began(FrontierRefused("Its memory is full"))
    outage.began(FrontierUnavailable("Redis does not answer"))
    outage.ended(5)
    outage.began(FrontierUnavailable("Redis does not answer"))
    assert [line.partition(" after")[0] for line in caplog.messages] == [
        "Redis does not answer. It goes on",
        "Its memory is full. It goes on",
        "Redis is back",
        "Redis does not answer. It goes on",
    ]
