"""Show entries of a crawl, without logins and limited in size.

Failed requests and dead letters are grouped by cause and host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from scrapy_dq.codec.shown import shown, url_of, without_logins
from scrapy_dq.frontier.admin.entries import kept, kept_one
from scrapy_dq.frontier.admin.retry import count_kept
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.records import CLAIMED, Entry
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import span, unanswered, when
from scrapy_dq.text import printable, prose_without_logins

LONGEST_REASON = 2_000
"""Maximum number of characters of a reason. Reasons that this package writes have at most about 500."""
LONGEST_CAUSE = 200
LONGEST_HOST = 255
LONGEST_SHOWN = 500
"""Maximum number of characters of a URL or a reason in a list."""
MAX_BYTES = 16_777_216
"""A list reads about this many bytes at most, because a single record may be megabytes long."""
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}://\S{1,2000}", re.IGNORECASE)
# The status of a response stays, because it is a cause: HTTP 404, status 404.
_NUMBER = re.compile(
    r"""\b(?: 0x[0-9a-f]{1,32}
            | (?!(?:(?<=\bHTTP[ ]) | (?<=\bstatus[ ])) [1-9][0-9]{2}(?!\.?\w)) [0-9]{1,40}(?:\.[0-9]{1,40})*
        )\b""",
    re.IGNORECASE | re.VERBOSE,
)
# scheduling/own_code.py writes this at the end of a reason.
_PLACE = re.compile(r"\([^()]{1,100}:[0-9]{1,7} in [^()]{1,40}\)\Z")


def record_of(entry: Entry, place: Place) -> dict[str, Any]:
    """Return all known facts about an entry, with its full `request`.

    A value is None or empty if it is unknown, or if the entry has no such value.
    """
    return summary_of(entry, place, LONGEST_REASON) | {
        "where": entry.where,
        "at": entry.at or None,
        "partition": None if entry.partition == CLAIMED else entry.partition.decode("utf-8", "replace"),
        "ahead": entry.ahead,
        "wait_s": None if entry.wait_s is None else round(entry.wait_s, 3),
        "done": entry.done,
        "request": shown(entry.payload, place.config.max_entry_bytes),
    }


def details_of(record: dict[str, Any]) -> str:
    """Describe a record in a few words, without its URL and reason."""
    where = record["where"]
    # A request in the rotation waits for nothing: a worker may lease it now.
    parts = [] if where == "rotation" else ["waits for a lease or budget" if where == "saturated" else where]
    if record["ahead"] is not None:
        parts.append("next" if not record["ahead"] else f"behind {record['ahead']:,}")
    if record["wait_s"]:
        parts.append(f"due in {span(record['wait_s'])}")
    if record["done"]:
        parts.append("done")
    if record["at"]:
        parts += [when(record["at"]), worker_of(record)]
    elif record["worker"]:
        parts.append(record["worker"])
    if "method" in (request := record["request"]):
        parts.append(f"{request['method']} {request.get('callback') or 'parse'}")
        parts += [f"priority {request['priority']}"] if request.get("priority") else []
    return ", ".join(map(str, parts))


def matches(pattern: str) -> Callable[[str], bool]:
    """Return a function that looks for *pattern* in a URL; `*` stands for any text."""
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return lambda url: wanted.search(url) is not None


def title(entry: Entry, place: Place) -> str:
    """Return the URL of an entry, without a login, or a substitute in brackets."""
    return title_of(shown(entry.payload, place.config.max_entry_bytes))


def summary_of(found: Entry, place: Place, longest: int = LONGEST_SHOWN) -> dict[str, Any]:
    """Return the data of an entry for a list, mainly of failed requests and dead letters.

    Only the first *longest* characters of the reason are used, because the time to remove logins grows with
    the square of a word's length.
    """
    most = place.config.max_entry_bytes
    url = without_logins(found.label) or title(found, place)
    # An earlier version may have stored a reason with a login.
    reason = prose_without_logins(found.reason[:longest], url_of(found.payload, most), limit=longest)
    return {
        "id": found.entry_id.hex(),
        "url": url,
        "reason": reason,
        "cause": cause_of(reason),
        "host": host_of(url),
        "at": found.at,
        "worker": found.worker_id,
        "attempts": found.attempts,
    }


def title_of(request: dict[str, Any]) -> str:
    """Return the URL of a payload as decoded by `codec.shown`, or a substitute in brackets."""
    kind = request["kind"]
    if "url" in request:
        return str(request["url"])
    if kind == "unreadable":
        return f"(unreadable: {request['reason']})"
    if kind == "serialized":
        return f"(serialized: {request['bytes']:,} bytes)"
    return f"({kind}: {request.get('payload', request.get('item'))!s:.200})"


def worker_of(record: dict[str, Any]) -> str:
    """Return the name of the entry's last worker, and how many workers have crashed with the entry."""
    times = f", after {record['attempts']} crashes" if record["attempts"] else ""
    return f"{record['worker'] or 'before any worker leased it'}{times}"


def cause_of(reason: str) -> str:
    """Return a *reason* without URLs and numbers, which differ between requests.

    The place in the project's code stays, because the line of code is a part of the cause.
    """
    found = _PLACE.search(reason)
    place = f" {printable(found[0])}" if found else ""
    cause = _NUMBER.sub("#", _URL.sub("<URL>", reason[: found.start() if found else None]))
    return printable(cause, LONGEST_CAUSE - len(place)) + place


def host_of(url: str) -> str:
    """Return the host of a URL; "" if it has no host."""
    try:
        return printable(urlsplit(url).hostname or "", LONGEST_HOST)
    except ValueError:  # http://[
        return ""


def group_of(record: dict[str, Any]) -> tuple[str, str]:
    """Return cause and host of a record. Records with the same cause and host form a group."""
    return record["cause"], record["host"]


def groups_of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups of some records, the largest first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        key = cause, host = group_of(record)
        group = groups.setdefault(key, {"cause": cause, "host": host, "count": 0, "newest": 0.0})
        group["count"] += 1
        group["newest"] = max(group["newest"], record["at"])
    return sorted(groups.values(), key=lambda each: (-each["count"], -each["newest"]))


def read_failures(place: Place, kind: str, most: int) -> dict[str, Any]:
    """Return at most *most* failed requests (the newest) or dead letters (any), and their groups.

    The largest group is first. At most about MAX_BYTES are read, but each shard is asked at least once. Texts
    are printable. `missing` has a sentence about the shards that did not answer.

    Raises:
        NoSuchCrawl, FrontierRefused, redis.exceptions.RedisError: the crawl cannot be read.
    """
    census = place.overview(hint=False, most_members=0).census
    rows = []
    for found in kept(place.shards, place.crawl, kind, most, most_bytes=MAX_BYTES):
        record = summary_of(found, place)
        texts = {name: printable(record[name], LONGEST_SHOWN) for name in ("url", "reason", "worker")}
        rows.append(record | texts | {"by": printable(worker_of(record))})
    return {
        "kind": kind,
        "at": round(time.time(), 3),
        "total": getattr(census, kind),
        "kept": count_kept(place.shards, place.crawl)[kind == "dead"],
        "missing": list(unanswered(place.shards.unreachable)),
        "groups": groups_of(rows),
        "rows": rows,
    }


def read_failure(place: Place, kind: str, entry_id: bytes) -> dict[str, Any] | None:
    """Return one failed request or dead letter in full, or None if Redis no longer stores it.

    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierUnavailable: a shard that may have the entry does not answer.
    """
    place.shards.ask_all()
    found = kept_one(place.shards, place.crawl, kind, entry_id)
    if found is None and place.shards.unreachable:
        raise FrontierUnavailable("; ".join(unanswered(place.shards.unreachable)))
    return None if found is None else record_of(found, place)
