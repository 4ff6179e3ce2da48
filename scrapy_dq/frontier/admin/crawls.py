"""Find the crawls in a Redis, for suggestions and overviews. Read-only."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

from redis.exceptions import RedisError

from scrapy_dq.frontier.admin.shards import at_home, in_cluster
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.keys import PREFIX, prefix

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


def members_of(client: Any, crawl: str) -> int:
    """Return how many workers a crawl has; 0 if that cannot be read; blocking.

    Raises:
        redis.exceptions.RedisError: no reply of the only node.
    """
    try:
        return int(at_home(client, crawl, lambda node, home: node.scard(prefix(home) + "members")))
    except (RedisError, OSError) as error:
        if not (is_answer(error) or in_cluster(client)):
            raise
        return 0
