"""Retry-After: the responses that ask for a pause, and the length of the pause."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from scrapy_dq.frontier.model import Limits
from scrapy_dq.scheduling.downloads import Downloads
from scrapy_dq.scheduling.partitions import BadPartition, OneSlot, partition_without_downloader
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
def test_other_statuses_ask_for_no_pause(status: int) -> None:
    """For example, a redirect's Retry-After concerns only that redirect."""
    assert asked("5", status) is None


def test_a_response_without_the_header_asks_for_no_pause() -> None:
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
def test_a_date_counts_from_the_date_of_the_response(until: str, seconds: float) -> None:
    """The clocks of the site and of this host may differ by hours. A date in the past asks for no pause."""
    assert asked(until, date=DATE) == seconds


def test_a_date_is_ignored_if_the_response_has_no_valid_date() -> None:
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
def test_an_unreadable_value_is_ignored(value: str | bytes) -> None:
    """A site may send any value, so no value may raise an exception."""
    assert asked(value, date=DATE) is None


BUSY = Response("http://a.com/", status=429, headers={"Retry-After": "5"})


def blocked(request: Request, served_from: bytes | None, partition_of: Callable[[Request], bytes]) -> Any:
    """Return the partitions that the response BUSY to *request* blocks."""
    blocks: list[bytes] = []
    slots: Any = SimpleNamespace(partition_of=partition_of)
    counts: Any = SimpleNamespace(inc_value=lambda name: None)
    downloads: Any = SimpleNamespace(
        partition_of=lambda _: served_from, block=lambda name, _: blocks.append(name)
    )
    watch = RetryAfter(slots, downloads, 60.0, counts)
    watch.downloaded(BUSY, request)
    return blocks


def test_the_partition_that_a_request_was_served_from_is_blocked() -> None:
    """The URL and meta may have changed, but other requests for the site still wait in that partition."""
    request = Request("http://a.com/", meta={"download_slot": "b.com"})
    assert blocked(request, b"mine", partition_without_downloader) == [b"mine"]
    assert blocked(request, b"", partition_without_downloader) == [b""]


@pytest.mark.parametrize("local", [False, True])
def test_the_partition_is_known_until_the_end_of_the_download(local: bool) -> None:
    """The partition stays known while the request waits in a middleware and takes no room."""
    nobody: Any = None
    downloads = Downloads(OneSlot(), Limits(), nobody, nobody, most=1)
    request = Request("http://a.com/")
    assert downloads.partition_of(request) is None
    if local:
        downloads.begin_local(request, b"mine")
    else:
        downloads.begin(request, b"mine", timed=False)
    assert downloads.partition_of(request) == b"mine"
    downloads.held_up(request)
    downloads.held_up(Request("http://b.com/"))
    assert downloads.partition_of(request) == b"mine"
    assert downloads.partition_of(request.copy()) is None


def test_a_request_outside_the_scheduler_blocks_its_own_host() -> None:
    """A redirect of a media pipeline has another host's slot in its meta."""
    request = Request("http://a.com/", meta={"download_slot": "victim.example"})
    assert blocked(request, None, partition_without_downloader) == [b"a.com"]


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (b"victim.example", b"www.a.com"), (b"10.0.0.1", b"www.a.com"), (b"::1", b"www.a.com"),
        (b"a.com", b"a.com"), (b"www.a.com", b"www.a.com"), (b"mine", b"mine"), (b"w.a.com", b"www.a.com"),
    ],
)  # fmt: skip
def test_a_request_with_the_slot_of_another_host_blocks_its_own_host(slot: bytes, expected: bytes) -> None:
    """The spider copied the slot from another host's page. A slot that the project named is blocked."""
    assert blocked(Request("http://www.a.com/"), slot, partition_without_downloader) == [expected]


def test_a_request_without_a_valid_slot_blocks_nothing() -> None:
    """A request without a valid slot is not stored, so no other worker sends it."""

    def partition_of(request: Request) -> bytes:
        raise BadPartition("the name of its download slot")

    assert blocked(Request("http://a.com/"), None, partition_of) == []
