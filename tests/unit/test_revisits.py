"""Revisit policies and their intervals, and how the stored record of a visit is read, checked and used."""

from __future__ import annotations

from decimal import Decimal
from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request, Spider
from scrapy.http import Response

from scrapy_dq.codec import Codec
from scrapy_dq.revisits.policy import (
    Adaptive,
    BadRevisit,
    Fixed,
    Never,
    RevisitPolicy,
    checked,
    policy_in,
    policy_of,
    policy_of_meta,
)
from scrapy_dq.revisits.revisits import (
    KEY,
    MAX_VALIDATOR_LENGTH,
    Revisits,
    Visit,
    digest_of,
    remove_conditions,
    validators_of,
)
from scrapy_dq.settings import Config, ConfigError

HOUR_S, DAY_S = 3600.0, 86_400.0
PAGE = Response("http://a.com")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("fixed:1s", 1), ("fixed:1.5h", 5400), ("fixed:30m", 1800), ("fixed:1d", 86_400),
        ("fixed:2w", 1_209_600),
        ("fixed: 1d ", 86_400), ("adaptive:1h..4h", 7200), ("adaptive:1h..1h", 3600),
    ],
)  # fmt: skip
def test_a_policy_can_be_written_in_words(words: str, seconds: float) -> None:
    """An adaptive policy begins with the geometric mean of its bounds."""
    assert policy_in(words).interval(PAGE, None, None) == seconds


@pytest.mark.parametrize(
    "words",
    [
        "", "1d", "fixed", "fixed:", "fixed:1", "fixed:d", "fixed:-1d", "fixed:0s", "fixed:0.5s", "fixed:1y",
        "fixed:1000w", "fixed:1e3s", "adaptive:1h", "adaptive:..1h", "adaptive:1h..", "adaptive:2h..1h",
        "adaptive:1h...2h", "Fixed:1d", "fixed:1d..2d", "fixed:" + "9" * 400 + "d",
    ],
)  # fmt: skip
def test_invalid_policy_text_is_refused(words: str) -> None:
    with pytest.raises(BadRevisit, match="expected"):
        policy_in(words)


class Weekly(RevisitPolicy):
    """A project's own policy."""

    priority, field = -1, "stock"


@pytest.mark.parametrize(
    ("value", "priority", "field"),
    [
        ("fixed:1d", -100, ""),
        ("fixed:1d, field=price", -100, "price"),
        ("adaptive:1h..7d, priority=-10,field=price", -10, "price"),
        ("meta, priority=1000000", 1_000_000, ""),
        (f"{__name__}.Weekly, priority=5", 5, "stock"),
        (Weekly, -1, "stock"),
    ],
)
def test_a_policy_can_set_the_priority_and_the_field(value: Any, priority: int, field: str) -> None:
    """In text, options follow the policy after a comma; a class sets them as attributes."""
    policy = policy_of(cast("Any", SimpleNamespace()), Config("crawl", revisit=value))
    assert (policy.priority, policy.field) == (priority, field)


@pytest.mark.parametrize(
    "option", ["", "price", "field=", "fild=price", "priority=high", "priority=0.5", "priority=1000001"]
)
def test_an_invalid_option_is_refused(option: str) -> None:
    """The error shows the option and the form of valid options."""
    value, crawler = f"fixed:1d, priority=3, {option}", cast("Any", SimpleNamespace())
    with pytest.raises(ConfigError, match=rf"^DQ_REVISIT = '{option}': expected .*field=NAME.*priority=-100"):
        policy_of(crawler, Config("crawl", revisit=value))


@pytest.mark.parametrize("value", [True, "meta", "banana", 0, 0.5, 1e12, float("nan"), [], {}, b"fixed:1d"])
def test_a_bad_value_in_meta_is_refused(value: Any) -> None:
    with pytest.raises(BadRevisit, match="expected"):
        policy_of_meta(value)


def test_meta_overrides_the_policy() -> None:
    assert isinstance(policy_of_meta(None), Never)
    assert isinstance(policy_of_meta(False), Never)
    assert policy_of_meta(7).interval(None, None, None) == 7
    assert isinstance(policy_of_meta("adaptive:1h..2h"), Adaptive)
    assert isinstance(policy_of_meta("fixed:1h"), Fixed)


@pytest.mark.parametrize("seconds", ["1", None, True, float("inf"), float("nan"), 0, -1, 1e12])
def test_an_interval_is_a_number_within_bounds(seconds: Any) -> None:
    with pytest.raises(BadRevisit, match="expected seconds"):
        checked(seconds)


def test_an_adaptive_interval_halves_and_doubles_within_its_bounds() -> None:
    policy = policy_in("adaptive:1h..30d")
    assert policy.interval(PAGE, 8 * HOUR_S, changed=True) == 4 * HOUR_S
    assert policy.interval(PAGE, 8 * HOUR_S, changed=False) == 16 * HOUR_S
    assert policy.interval(PAGE, 8 * HOUR_S, changed=None) == 8 * HOUR_S
    assert policy.interval(PAGE, HOUR_S, changed=True) == HOUR_S
    assert policy.interval(None, 30 * DAY_S, changed=False) == 30 * DAY_S


@pytest.mark.parametrize("period_s", [HOUR_S, 6 * HOUR_S, 2 * DAY_S])
def test_an_adaptive_interval_approaches_half_the_time_between_changes(period_s: float) -> None:
    """After ten visits, the interval is on average half the time between changes."""
    policy = policy_in("adaptive:10m..30d")
    now, seen, last = 0.0, -1, None
    intervals = list[float]()
    for _ in range(200):
        version = int(now // period_s)
        changed = None if seen < 0 else version != seen
        seen, last = version, policy.interval(PAGE, last, changed)
        assert last is not None
        intervals.append(last)
        now += last
    assert all(period_s / 8 <= each <= 2 * period_s for each in intervals[10:])
    assert 0.4 <= mean(intervals[10:]) / period_s <= 0.6


def test_a_policy_class_must_define_an_interval() -> None:
    with pytest.raises(NotImplementedError):
        RevisitPolicy().interval(PAGE, None, None)


def test_a_visit_is_kept_in_a_request_and_taken_from_it() -> None:
    request, visit = Request("http://a.com"), Visit(7.0, "digest", ('"e"', "then"), -3)
    visit.put_into(request)
    assert Visit.taken_from(request) == visit
    assert KEY not in request.meta
    assert Visit.taken_from(request) is None


@pytest.mark.parametrize(
    "kept",
    [
        "", 1, [], [1], [0.5, "", ["", ""], None], [1e12, "", ["", ""], None], ["1", "", ["", ""], None],
        [7, 1, ["", ""], None], [7, "", "", None], [7, "", [""], None], [7, "", [1, ""], None],
        [7, "", ["a\r\nCookie: b", ""], None], [7, "", ["", "a\nb"], None],
        [7, "", ["", ""], "high"], [7, "x" * (MAX_VALIDATOR_LENGTH + 1), ["", ""], None], {"a": 1},
    ],
)  # fmt: skip
def test_an_invalid_stored_visit_is_ignored(kept: Any) -> None:
    """Redis is shared, so another program may have written the value."""
    assert Visit.taken_from(Request("http://a.com", meta={KEY: kept})) == Visit()


def test_conditions_are_added_and_removed() -> None:
    """Only GET and HEAD requests get conditions, and a header that a request already has is not replaced."""
    visit = Visit(7.0, "", ('"é"', "Thu, 01 Jan 1970 00:00:00 GMT"))
    request = Request("http://a.com")
    added = visit.add_conditions(request)
    assert request.headers["If-None-Match"] == '"é"'.encode("latin-1")
    assert request.headers["If-Modified-Since"].endswith(b"GMT")
    remove_conditions(request, added)
    assert not request.headers
    assert len(added) == 2
    own = Request("http://a.com", headers={"If-None-Match": "mine", "If-Modified-Since": "never"})
    assert not visit.add_conditions(own)
    remove_conditions(own, added)
    assert len(own.headers) == 2
    assert not visit.add_conditions(Request("http://a.com", method="POST"))
    assert not Visit().add_conditions(request)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def changes(*values: Any) -> list[bool | None]:
    """Visit one page once for each of *values*, which are the values of its item's field at these visits.

    Return the argument `changed` that the policy got at each visit.
    """
    told: list[bool | None] = []

    class Noting(RevisitPolicy):
        field = "price"

        def interval(self, response: Response | None, last_s: float | None, changed: bool | None) -> float:
            told.append(changed)
            return 60

    crawler: Any = SimpleNamespace(stats=SimpleNamespace(inc_value=lambda name: None))
    codec = Codec(Spider(name="spider"))
    revisits = Revisits(crawler, Noting(), codec, lambda request, parent, continues: request)
    payload = codec.encode(Request("http://a.com"))
    for value in values:
        request = codec.decode(payload)
        revisits.begin(request, b"lease", payload)
        revisits.answered(b"lease", Response("http://a.com", request=request))
        revisits.yielded(b"lease", {"price": value})
        following = revisits.ended(b"lease", failed=False)
        assert following is not None
        payload = following.payload
    return told


def test_a_field_is_compared_by_value() -> None:
    """The values are compared, not their texts: the order of a set differs between processes."""
    first, second = {0, 8}, {8, 0}
    assert repr(first) != repr(second)
    assert changes(first, second, {0, 9}) == [None, False, True]
    assert changes([Decimal("1.50")], [Decimal("1.50")], None) == [None, False, True]


@pytest.mark.parametrize("value", [object(), Unprintable(), {"a": Unprintable()}])
def test_a_field_that_cannot_be_compared_leaves_the_change_unknown(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a value cannot be packed.

    Its repr() is no substitute: it may raise, or contain an address that differs at each visit.
    """
    assert changes(1, value, value, 1, 1) == [None, None, None, None, False]
    assert len(caplog.records) == 1


def test_validators_that_are_too_long_or_invalid_are_left_out() -> None:
    """If only one validator is left out, the other one is kept."""
    headers = {"ETag": "e" * (MAX_VALIDATOR_LENGTH + 1), "Last-Modified": "then"}
    assert validators_of(Response("http://a.com", headers=headers)) == ("", "then")
    assert validators_of(PAGE) == ("", "")
    assert validators_of(Response("http://a.com", headers={"ETag": "a\x85b"})) == ("", "")
    assert digest_of(b"a", b"b") != digest_of(b"ab")
    assert digest_of(b"a") == digest_of(b"a")
