"""Retry-After: all workers stop sending requests to a site for as long as it asks."""

from __future__ import annotations

import logging
import re
import time
from email.utils import parsedate_to_datetime

from scrapy import Request
from scrapy.http import Response
from scrapy.statscollectors import StatsCollector

from scrapy_dq.scheduling.downloads import Downloads
from scrapy_dq.scheduling.partitions import BadPartition, OneSlot, Slots
from scrapy_dq.stats import names as stats

logger = logging.getLogger(__name__)
STATUSES = (429, 503)


class RetryAfter:
    """Watches responses, and blocks a partition for all workers if its site asks for it."""

    def __init__(
        self, slots: Slots | OneSlot, downloads: Downloads, max_s: float, counts: StatsCollector
    ) -> None:
        """*max_s*: longest block, in seconds (DQ_RETRY_BACKOFF)."""
        self._slots = slots
        self._downloads = downloads
        self._max_s = max_s
        self._stats = counts
        self._logged_until: dict[bytes, float] = {}
        """By site: the time until which its pause is not logged again. Requests that are under way get the
        same answer, and would otherwise add a line each."""

    def downloaded(self, response: Response, request: Request) -> None:
        """Obey the Retry-After of *response*. Called by Scrapy's signal `response_downloaded`."""
        asked_s = retry_after_s(response)
        if not asked_s:
            return
        partition = self._downloads.partition_of(request)
        try:
            own = self._slots.partition_of(Request(request.url))
        except BadPartition:
            return
        # `Downloads` has no partition for requests for robots.txt, and for requests of media pipelines and of
        # `engine.download()`. The meta of their redirects may name the slot of another host, and so may
        # requests that a spider makes with the `meta` of another page. If this slot counted, the answer of
        # this site would block the other site.
        if partition is None or _is_another_host(partition, own):
            partition = own
        wait_s, now = min(asked_s, self._max_s), time.monotonic()
        self._stats.inc_value(stats.RETRY_AFTER)
        self._downloads.block(partition, wait_s)
        self._logged_until = {site: until for site, until in self._logged_until.items() if until > now}
        if partition in self._logged_until:
            return
        self._logged_until[partition] = now + wait_s
        capped = f" (asked for {asked_s:g} s; DQ_RETRY_BACKOFF)" if wait_s < asked_s else ""
        logger.info(
            "%s answers %d with Retry-After: no worker sends it requests for %g s%s",
            partition.decode(), response.status, wait_s, capped,
        )  # fmt: skip


def _is_another_host(slot: bytes, host: bytes) -> bool:
    """Tell whether *slot* is named like a host, and is neither *host* nor a domain above it."""
    return (b"." in slot or b":" in slot) and slot != host and not host.endswith(b"." + slot)


def retry_after_s(response: Response) -> float | None:
    """Return the seconds, from now, that *response* asks to wait; None: no Retry-After, or an invalid one.

    A date is compared with the response's own Date header, because clocks may be wrong. If the response has
    no Date header, a date in Retry-After counts as invalid.
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
