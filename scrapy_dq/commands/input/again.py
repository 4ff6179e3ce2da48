"""What is to be typed again: options as they were, but for passwords and keys; the name of a crawl."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

_SECRET = re.compile(r"(REDIS_(?:URL|PARAMS)(?==.*(?:@|password))|DQ_SIGNING_KEYS)=.*", re.DOTALL)


def named(crawl: str, spider: str) -> str:
    """Return the words that mean a crawl to other commands."""
    return shlex.quote(spider) if spider == crawl else f"--crawl {shlex.quote(crawl)}"


def repeated(flag: str, values: Iterable[str] | None) -> Iterator[str]:
    """Yield *flag* with each of *values*, quoted for a shell."""
    for value in values or ():
        shown = _SECRET.sub(r"\1=...", value) if flag == "-s" else value
        yield f"{flag} {shlex.quote(shown)}"
