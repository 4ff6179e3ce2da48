"""The due time of a request, from its meta and DQ_RETRY_BACKOFF."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request
from scrapy.http import JsonRequest

from scrapy_dq.scheduling import due_times as module
from scrapy_dq.scheduling.due_times import AT_ONCE, LATEST_S, LONGEST_S, BadDue, Due, as_stored, due_of
from scrapy_dq.settings import Backoff

NOW = 1000.0
BACKOFF = Backoff(1.0, 60.0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: NOW)


def request(**meta: Any) -> Request:
    return Request("http://a.com/", meta=meta)


@pytest.mark.parametrize(
    ("meta", "due"),
    [
        ({}, AT_ONCE),
        ({"dq_delay": None, "dq_not_before": None}, AT_ONCE),
        ({"dq_delay": 0, "dq_not_before": 0}, AT_ONCE),
        ({"dq_delay": 2.5}, Due(NOW + 2.5, 0)),
        ({"dq_not_before": 1_800_000_000}, Due(0, 1_800_000_000)),
        ({"dq_delay": 5, "dq_not_before": 1.5}, Due(NOW + 5, 1.5)),
        ({"dq_delay": LONGEST_S, "dq_not_before": LATEST_S}, Due(NOW + LONGEST_S, LATEST_S)),
    ],
)
def test_a_time_is_read_from_the_meta(meta: dict[str, Any], due: Due) -> None:
    """`dq_delay` counts seconds from now, by the clock of this process.

    `dq_not_before` counts seconds since 1970, by the clock of Redis.
    """
    assert due_of(request(**meta), None, Backoff()) == due


# The upper limits of both keys also refuse a time in milliseconds since 1970.
@pytest.mark.parametrize(
    "bad",
    [-1, "soon", True, float("nan"), 1e30, 2**70, [5], 5j],
    ids=repr,
)
@pytest.mark.parametrize("key", ["dq_delay", "dq_not_before"])
def test_an_invalid_time_is_refused(key: str, bad: Any) -> None:
    """The error names the key, the value and the expected range, in a few words."""
    with pytest.raises(
        BadDue, match=rf"^meta\['{key}'\] = .* expected seconds as a number from 0 to"
    ) as refusal:
        due_of(request(**{key: bad}), None, Backoff())
    assert repr(bad) in str(refusal.value)


def test_a_long_value_is_cut_and_made_ascii() -> None:
    """The message is shown in logs and dead letters."""
    with pytest.raises(BadDue) as refusal:
        due_of(request(dq_delay="\n\x1b\ud800" * 10_000), None, Backoff())
    assert len(str(refusal.value)) < 200
    assert str(refusal.value).isascii()
    assert str(refusal.value).isprintable()


def test_without_backoff_a_retry_is_due_at_once() -> None:
    assert due_of(request(retry_times=1), request(), Backoff()) == AT_ONCE


@pytest.mark.parametrize(
    ("parent", "backs_off"),
    [
        (None, True),
        (request(), True),
        (request(retry_times=1), True),
        (request(retry_times=2), False),
        (request(retry_times=3), False),
        (request(retry_times="many"), False),
    ],
)
def test_a_retry_backs_off_and_a_redirect_does_not(parent: Request | None, backs_off: bool) -> None:
    """A redirect of a retry, or a child that copied the meta, has the same count as its parent."""
    found = due_of(request(retry_times=2), parent, BACKOFF)
    assert (found != AT_ONCE) is backs_off


@pytest.mark.parametrize("meta", [{}, {"retry_times": 0}, {"retry_times": "1"}])
def test_only_a_retry_backs_off(meta: dict[str, Any]) -> None:
    assert due_of(request(**meta), request(), BACKOFF) == AT_ONCE


@pytest.mark.parametrize(("times", "longest"), [(1, 1), (2, 2), (5, 16), (7, 60), (8, 60), (10**6, 60)])
def test_a_backoff_doubles_up_to_its_cap_and_half_of_it_is_jitter(times: int, longest: float) -> None:
    pauses = {due_of(request(retry_times=times), None, BACKOFF).at - NOW for _ in range(50)}
    assert longest / 2 <= min(pauses) < max(pauses) <= longest
    assert len(pauses) > 10


def test_a_retry_keeps_the_time_that_it_names() -> None:
    """The code that makes the retry knows the right time better than DQ_RETRY_BACKOFF."""
    assert due_of(request(retry_times=1, dq_delay=0), None, BACKOFF) == AT_ONCE
    assert due_of(request(retry_times=1, dq_not_before=5), None, BACKOFF) == Due(0, 5)


def test_a_request_is_stored_without_its_time() -> None:
    """Later requests copy the meta, so the stored request has no time. The caller's request is unchanged."""
    meta = {"dq_delay": 5, "dq_not_before": 6, "download_latency": 0.1, "kept": 7}
    original = JsonRequest("http://a.com/", data={"a": 1}, meta=meta)
    stored = as_stored(original)
    assert stored.meta == {"kept": 7}
    assert original.meta == {"dq_delay": 5, "dq_not_before": 6, "download_latency": 0.1, "kept": 7}
    assert (type(stored), stored.body, stored.headers) == (JsonRequest, original.body, original.headers)
