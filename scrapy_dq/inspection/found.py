"""Entries of a crawl that a search has found, as values for people and programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.failures import LONGEST_REASON, title_of
from scrapy_dq.inspection.words import span
from scrapy_dq.text import prose_without_logins

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.entries import Entry
    from scrapy_dq.inspection.place import Place

_CLAIMED = b"\1"
"""The partition of start payloads that were claimed. Source: frontier/lua/lib/state.lua"""


def matches(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a URL has *pattern* in it; `*` in that is any text."""
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return lambda url: wanted.search(url) is not None


def record_of(entry: Entry, place: Place) -> dict[str, Any]:
    """Return all that is known of an entry, with its `request` in full."""
    from scrapy_dq.codec.shown import shown, url_of

    most = place.config.max_entry_bytes
    reason = entry.reason[:LONGEST_REASON]
    return {
        "where": entry.where,
        "id": entry.entry_id.hex(),
        "partition": None if entry.partition == _CLAIMED else entry.partition.decode("utf-8", "replace"),
        "attempts": entry.attempts,
        "ahead": entry.ahead,
        "wait_s": None if entry.wait_s is None else round(entry.wait_s, 3),
        "worker": entry.worker_id or None,
        "done": entry.done,
        "reason": prose_without_logins(reason, url_of(entry.payload, most), limit=LONGEST_REASON) or None,
        "at": round(entry.at, 3) or None,
        "request": shown(entry.payload, most),
    }


def details_of(record: dict[str, Any], now: float) -> str:
    """Return what is known of a record besides its request, in a few words.

    Args:
        now: seconds since 1970 by the clock of Redis.
    """
    said = []
    if record["ahead"] is not None:
        said.append("next" if not record["ahead"] else f"behind {record['ahead']:,}")
    if record["wait_s"] is not None:
        said.append(f"due in {span(record['wait_s'])}")
    if record["worker"]:
        said.append(str(record["worker"]))
    if record["done"]:
        said.append("done")
    if record["at"]:
        said.append(f"{span(max(0.0, now - record['at']))} ago")
    if record["attempts"]:
        said.append(f"{record['attempts']} crashes")
    if record["reason"]:
        said.append(str(record["reason"]))
    return ", ".join(said)


def title(entry: Entry, place: Place) -> str:
    """Return the URL of an entry, without a login, or a substitute in brackets."""
    from scrapy_dq.codec.shown import shown

    return title_of(shown(entry.payload, place.config.max_entry_bytes))
