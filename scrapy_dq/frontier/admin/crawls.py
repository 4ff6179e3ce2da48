"""Find the crawls in a Redis, for suggestions and overviews. Read-only."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

from scrapy_dq.frontier.keys import PREFIX

_PATTERN = f"{PREFIX}{{*}}:meta"
_PART = 1000


def some_crawls(client: Any, *, most_keys: int = 200_000, budget_s: float = 0.5) -> list[str]:
    """Return the names of the crawls that are found within the bounds; blocking.

    A Redis may hold millions of other keys: SCAN examines about *most_keys* of them.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    cursor, found, until = 0, set[str](), time.monotonic() + budget_s
    for _ in range(most_keys // _PART):
        cursor, names = scan_crawls(client, cursor)
        found.update(names)
        if not cursor or time.monotonic() >= until:
            break
    return sorted(found)


def scan_crawls(client: Any, cursor: int) -> tuple[int, list[str]]:
    """Examine about 1,000 keys; return the next cursor (0: these were the last), and the crawls among them.

    Args:
        cursor: 0 at first.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    cursor, names = client.scan(cursor, match=_PATTERN, count=_PART)
    encoded = (
        name.decode("utf-8", "replace").removeprefix(f"{PREFIX}{{").removesuffix("}:meta") for name in names
    )
    # With a slash, which a name does not have once it is encoded, it is another shard of a crawl.
    return cursor, [unquote(name) for name in encoded if "/" not in name]
