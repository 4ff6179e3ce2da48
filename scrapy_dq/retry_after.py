"""Retry-After: how long a site asks to be left alone."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from scrapy.http import Response

STATUSES = (429, 503)


def retry_after_s(response: Response) -> float | None:
    """Return for how many seconds from now, if *response* says so; None: it does not, or not legibly.

    A date counts from the response's own Date, and without one is not legible: clocks may be wrong.
    """
    value = response.headers.get("Retry-After")
    if response.status not in STATUSES or value is None:
        return None
    text = value.decode("latin-1").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    sent = response.headers.get("Date")
    until, now = _timestamp(text), _timestamp(sent.decode("latin-1")) if sent else None
    return None if until is None or now is None else max(0.0, until - now)


def _timestamp(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
