"""What a worker says at the end of a run."""

from __future__ import annotations

import logging

import pytest

from scrapy_dq.announcing import mention_end
from scrapy_dq.frontier.model import Census


@pytest.mark.parametrize(
    ("incomplete", "level", "says"),
    [
        (2, logging.ERROR, "but 2 start() did not come to its end"),
        (0, logging.WARNING, "has come back, or another one has done the same"),
    ],
)
def test_a_start_that_was_broken_off_may_be_complete_since(
    incomplete: int, level: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker has decided to close; what it says is what holds as it has left."""
    mention_end("books", "start_incomplete", Census(incomplete=incomplete))
    (record,) = caplog.records
    assert (record.levelno, says in record.getMessage()) == (level, True)
