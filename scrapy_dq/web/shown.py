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
        "request": [[_lines(name), _value(request[name])] for name in names],
        "left_out": len(request) - len(names),
    }


def _value(value: Any) -> str:
    """Return *value* as text, written only as far as it is shown.

    All of it could be 500 times as long as its record: each line begins with as many spaces as it is deep. So
    nothing deeper than some 200 levels is reached, either.
    """
    if isinstance(value, str):
        return _lines(value)
    parts, length = list[str](), 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=1).iterencode(value):
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            return f"{_lines(''.join(parts)[:LONGEST])}\n(and more)"
    return _lines("".join(parts))


def _lines(text: str) -> str:
    """Return *text* with ? for what cannot be printed, cut to LONGEST; it keeps its lines."""
    cut = text[:LONGEST].replace("\r\n", "\n")
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in cut)
    return f"{shown}\n({len(text) - LONGEST:,} more characters)" if len(text) > LONGEST else shown
