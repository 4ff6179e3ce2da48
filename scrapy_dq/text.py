"""Text for logs and reasons, made from what anybody may have written."""

from __future__ import annotations

CREW_SHOWS = "dq_crew_shows"
"""The attribute of a log record that `scrapy dq crawl` shows although it is only a warning."""


def printable(text: str, limit: int = 500) -> str:
    """Return *text* in one line of at most *limit* characters, with ? for what cannot be printed."""
    return "".join(char if char.isprintable() else "?" for char in text.strip()[:limit])
