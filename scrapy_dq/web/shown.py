"""One failed request in full, for the page: each attribute is text of bounded length."""

from __future__ import annotations

import json
from typing import Any

MOST_ATTRIBUTES = 50
LONGEST = 20_000
"""Characters of one attribute."""


def full(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return *record* with printable texts; None: there is none."""
    if record is None:
        return None
    request = record["request"]
    names = list(request)[:MOST_ATTRIBUTES]
    return {
        "id": record["id"],
        "at": record["at"],
        "attempts": record["attempts"],
        **{name: _lines(record[name]) for name in ("url", "reason", "worker")},
        "request": [[_lines(name), _lines(_text(request[name]))] for name in names],
        "left_out": len(request) - len(names),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _lines(text: str) -> str:
    """Return *text* with ? for what cannot be printed, cut to LONGEST; it keeps its lines."""
    cut = text[:LONGEST].replace("\r\n", "\n")
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in cut)
    return f"{shown}\n({len(text) - LONGEST:,} more characters)" if len(text) > LONGEST else shown
