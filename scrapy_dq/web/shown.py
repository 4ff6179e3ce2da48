"""Make the JSON that the page shows: all crawls, one crawl, or one record. All its texts are printable."""

from __future__ import annotations

import json
from typing import Any

from scrapy_dq.inspection import words
from scrapy_dq.inspection.crawls import Crawls, Row
from scrapy_dq.inspection.snapshot import Snapshot, left, settled, unhealthy_first
from scrapy_dq.text import printable

MAX_WORKERS = 100
MAX_ATTRIBUTES = 50
LONGEST = 20_000
"""Maximum number of characters of one attribute."""


def crawls(found: Crawls, redis: str) -> dict[str, Any]:
    """Return the data for the page of all crawls."""
    rows = [_crawl(row) for row in found.rows]
    return {"redis": redis, "crawls": rows, "searched": found.searched, "full": found.full}


def _crawl(row: Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"crawl": row.crawl, "shown": printable(row.crawl, words.LONGEST_NAME)}
    if row.error:
        return shown | {"error": row.error}
    if (found := row.snapshot) is None:
        return shown
    overview, counts, rate = found.overview, found.counts, found.pages_per_s
    shown |= {"phase": overview.phase, "hold": overview.hold.value, "run": overview.run, **counts}
    phase = (words.phase_of(shown), *words.uncounted(overview.unreachable, overview.apart))
    return shown | {
        "words": {"phase": "; ".join(phase)},
        "settled": settled(counts),
        "left": left(counts),
        "pages_per_s": None if rate is None else round(rate, 1),
    }


def crawl(found: Snapshot) -> dict[str, Any]:
    """Return the data for the page of a crawl; the snapshot must have `turn` and `partitions`."""
    status = found.status()
    for kind in ("largest", "slowest", "blocked"):
        status[f"{kind}_partitions"] = [_partition(each) for each in status[f"{kind}_partitions"]]
    if turn := status["turn"]:
        status["turn"] = turn | {"partition": printable(turn["partition"], words.LONGEST_NAME)}
    return status | {
        "worker_rows": [_worker(row) for row in unhealthy_first(found.workers)[:MAX_WORKERS]],
        "words": {
            "phase": words.phase_of(status),
            "left": "" if status["left_s"] is None else words.span(status["left_s"]),
            "awaiting": list(words.awaiting(status)),
            "memory": words.memory(status),
            "examined": words.examined(status),
            "missing": list(words.missing(status)),
        },
    }


def _worker(row: dict[str, Any]) -> dict[str, Any]:
    since_s = row["since_s"]
    return row | {
        "id": printable(row["id"], words.LONGEST_NAME),
        "host": printable(row["host"], words.LONGEST_NAME),
        "since": "" if since_s is None else words.span(since_s),
    }


def _partition(each: dict[str, Any]) -> dict[str, Any]:
    shown = printable(each["partition"], words.LONGEST_NAME)
    return each | {
        "partition": shown or "(no name)",
        "name": each["partition"] if each["partition"] == shown else None,
        "takes": words.span(each["takes_s"]),
        "delay": words.precise_span(each["delay_s"]),
        "blocked": words.precise_span(each["blocked_s"]),
    }


def full(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return *record* with printable texts; None if there is no record."""
    if record is None:
        return None
    request = record["request"]
    names = list(request)[:MAX_ATTRIBUTES]
    return {
        "id": record["id"],
        "at": record["at"],
        "attempts": record["attempts"],
        **{name: _lines(record[name]) for name in ("url", "reason", "worker")},
        "request": [[_lines(name), _value(request[name])] for name in names],
        "left_out": len(request) - len(names),
    }


def _value(value: Any) -> str:
    """Return *value* as text; long values are not indented, because that could make them 500 times longer."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) and len(text) <= LONGEST:
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return _lines(text)


def _lines(text: str) -> str:
    """Return *text* with ? for unprintable characters, cut to LONGEST; line breaks stay."""
    cut = text[:LONGEST].replace("\r\n", "\n")
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in cut)
    return f"{shown}\n({len(text) - LONGEST:,} more characters)" if len(text) > LONGEST else shown
