"""When a request is due: `meta["dq_delay"]`, `meta["dq_not_before"]`, and the back-off of retries."""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

from scrapy import Request

from scrapy_dq.codec import copied
from scrapy_dq.settings import Backoff

LONGEST_S = 315_360_000
"""Ten years. A longer delay is probably in a wrong unit."""
LATEST_S = 100_000_000_000
"""The year 5138. A later time is probably in milliseconds."""
DUE_KEYS = ("dq_delay", "dq_not_before")
# A copy of the parent's meta contains `download_latency`. This value differs after each download of the
# parent, so the child's payload, and thus its identity, would differ too.
NOT_STORED = frozenset((*DUE_KEYS, "download_latency"))
"""Keys of meta that `as_stored` leaves out."""


class BadDue(ValueError):
    """The meta of a request has an invalid delay or time."""


class Due(NamedTuple):
    """A request is due when both times have passed; 0 stands for no time."""

    at: float = 0.0
    """Seconds of this process's monotonic clock."""
    not_before_s: float = 0.0
    """Seconds since 1970, by the clock of Redis."""


AT_ONCE = Due()


def due_of(request: Request, parent: Request | None, backoff: Backoff) -> Due:
    """Return when *request* is due.

    Args:
        parent: the original request, if *request* may be a retry.
        backoff: defines the delays of retries (DQ_RETRY_BACKOFF).
    Raises:
        BadDue: `dq_delay` or `dq_not_before` in its meta is invalid.
    """
    meta = request.meta
    delay, not_before = meta.get("dq_delay"), meta.get("dq_not_before")
    if delay is None and not_before is None:
        if not backoff.base or not _is_retry(request, parent):
            return AT_ONCE
        delay = _pause_s(meta["retry_times"], backoff.base, backoff.cap)
    delay_s = 0.0 if delay is None else _number("dq_delay", delay, LONGEST_S)
    not_before_s = 0.0 if not_before is None else _number("dq_not_before", not_before, LATEST_S)
    return Due(time.monotonic() + delay_s if delay_s else 0.0, not_before_s)


def as_stored(request: Request) -> Request:
    """Return a copy of *request* without the parts of its meta that apply to this request only.

    Retries, redirects and many callbacks copy `meta`, so they would also copy the delay.
    """
    stored = copied(request)
    for key in NOT_STORED:
        stored.meta.pop(key, None)
    return stored


def _number(key: str, value: Any, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest:
        raise BadDue(f"meta[{key!r}] = {value!a:.100}: expected seconds as a number from 0 to {highest:,}")
    return float(value)


def _is_retry(request: Request, parent: Request | None) -> bool:
    # A redirect of a retry has the same `retry_times` as its parent, but is not a retry itself.
    times = request.meta.get("retry_times")
    before = parent.meta.get("retry_times", 0) if parent is not None else 0
    return isinstance(times, int) and isinstance(before, int) and times > before


def _pause_s(times: int, base_s: float, cap_s: float) -> float:
    # Up to half of the pause is left out at random, so that requests that failed together are not retried
    # together.
    return min(cap_s, base_s * 2.0 ** min(times - 1, 30)) * random.uniform(0.5, 1.0)
