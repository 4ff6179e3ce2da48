"""Retry-After: which responses ask to be left alone, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.scheduling.retry_after import RetryAfter, retry_after_s

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


def asked(value: str | bytes | None, status: int = 429, date: str | None = None) -> float | None:
    headers = {name: text for name, text in (("Retry-After", value), ("Date", date)) if text is not None}
    return retry_after_s(Response("http://a.com/", status=status, headers=headers))


@pytest.mark.parametrize("status", [429, 503])
def test_seconds_are_read(status: int) -> None:
    assert asked("5", status) == 5
    assert asked(" 120 ", status) == 120
    assert asked("0", status) == 0
    assert asked("999999999", status) == 999_999_999


@pytest.mark.parametrize("status", [200, 301, 404, 413, 500, 502])
def test_other_responses_ask_for_nothing(status: int) -> None:
    """A redirect's Retry-After, for one, is about that redirect."""
    assert asked("5", status) is None


def test_without_the_header_nothing_is_asked_for() -> None:
    assert asked(None) is None


@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2015 09:28:30 +0200", 30),
        ("Thu, 22 Oct 2015 07:28:00 GMT", 86_400),
        (DATE, 0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
    ],
)
def test_a_date_counts_from_the_responses_own(until: str, seconds: float) -> None:
    """The clocks of the site and of this host may differ by hours; what is past is over."""
    assert asked(until, date=DATE) == seconds


def test_a_date_without_one_to_count_from_is_not_legible() -> None:
    assert asked("Wed, 21 Oct 2015 07:28:30 GMT") is None
    assert asked("Wed, 21 Oct 2015 07:28:30 GMT", date="yesterday") is None


@pytest.mark.parametrize(
    "value",
    [
        "", "soon", "-5", "+5", "1.5", "1e3", "5s", "0x10", "5, 10", "٥", b"\xff\xfe", "9" * 10, "9" * 10_000,
        "Wed, 21 Oct 99999 07:28:30 GMT", "Wed, 41 Oct 2015 07:28:30 GMT", "21 Oct", ",", "a" * 100_000,
    ],
    ids=lambda value: repr(value[:20]),
)  # fmt: skip
def test_what_is_not_legible_is_ignored(value: str | bytes) -> None:
    """Whatever a site sends: nothing is raised."""
    assert asked(value, date=DATE) is None


def test_a_request_without_a_valid_slot_blocks_nothing() -> None:
    """It is one that is not stored, and that no other worker sends."""

    def partition_of(request: Request) -> bytes:
        raise BadPartition("the name of its download slot")

    nobody: Any = SimpleNamespace(partition_of=partition_of)
    request = Request("http://a.com/")
    RetryAfter(nobody, nobody, 60.0, nobody).downloaded(
        Response("http://a.com/", status=429, headers={"Retry-After": "5"}), request
    )
