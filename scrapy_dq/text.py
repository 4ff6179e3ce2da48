"""Text for logs and reasons, made from what anybody may have written; and text without logins."""

from __future__ import annotations

import re

CREW_SHOWS = "dq_crew_shows"
"""The attribute of a log record that `scrapy dq crawl` shows although it is only a warning."""
# A password with an unescaped / ? or # ends the host there, which then has a colon that no port follows.
_LOGIN = re.compile(
    r"""(?: (?<=//) (?: [^/?#]*  |  (?: [^/?#]+:(?!\d*[/?#]) | : ) .* )  # user:password@ of a URL
          | ^[^/]*:(?!//) .* )@                                         # user:password@ without a scheme
    """,
    re.DOTALL | re.VERBOSE,
)


def printable(text: str, limit: int = 500) -> str:
    """Return *text* in one line of at most *limit* characters, with ? for what cannot be printed."""
    return "".join(char if char.isprintable() else "?" for char in text.strip()[:limit])


def without_login(uri: str) -> str:
    """Return *uri* with `...` for its user and password, also if they are not escaped as they should be."""
    return _LOGIN.sub("...@", uri)


def has_login(text: str) -> bool:
    """Tell whether *text* is, or contains, a URL with a user or a password."""
    return _LOGIN.search(text) is not None
