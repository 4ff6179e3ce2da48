"""Finds the crawls in a Redis, for suggestions and overviews. Read-only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from redis.exceptions import RedisError

from scrapy_dq.frontier.admin.shards import in_cluster
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.keys import MAX_SHARDS, PREFIX, prefixes

_PATTERN = f"{PREFIX}{{*}}:meta"
_PART = 1000


class CrawlSearch:
    """Searches all keys of a Redis, or of a cluster, for crawls, a part at a time; blocking."""

    def __init__(self) -> None:
        self.complete = False
        """Whether a round (see `scan_more`) has examined all keys, with an answer from each node."""
        self._left: list[Any] = []
        """A client for each node that the present round has not scanned completely."""
        self._cursor = 0
        """The SCAN cursor for the last of these nodes."""
        self._missed = False
        """Whether a node did not answer in this round."""

    def scan_more(
        self, nodes: Callable[[], Sequence[Any]], *, most_keys: int = 200_000, budget_s: float = 0.5
    ) -> list[str]:
        """Return the names of the crawls among the next keys; the next call continues behind these keys.

        Together, the calls of a round go through all keys. After the last key, a new round begins. A Redis
        may hold millions of other keys, so one call examines about *most_keys* keys at most, and ends after
        about *budget_s* seconds.

        Args:
            nodes: returns a client for each node, and is called at the beginning of each round.
        Raises:
            redis.exceptions.RedisError: the only node does not reply, or a node has answered with an error.
        """
        found, until = set[str](), time.monotonic() + budget_s
        for _ in range(most_keys // _PART):
            found.update(self._part(nodes))
            if not self._left or time.monotonic() >= until:
                break
        return sorted(found)

    def all_names(self, nodes: Callable[[], Sequence[Any]]) -> list[str]:
        """Return the names of all crawls. This examines all keys, about 10⁶ per second.

        Raises:
            See `scan_more`.
        """
        found = set(self._part(nodes))
        while self._left:
            found.update(self._part(nodes))
        return sorted(found)

    def _part(self, nodes: Callable[[], Sequence[Any]]) -> list[str]:
        if not self._left:
            self._left = list(nodes())
            self._missed = False
        node, names = self._left[-1], []
        try:
            self._cursor, names = node.scan(self._cursor, match=_PATTERN, count=_PART)
        except (RedisError, OSError) as error:
            if is_answer(error) or not in_cluster(node):
                self._left, self._cursor = [], 0
                raise
            self._missed, self._cursor = True, 0
        if not self._cursor:
            self._left.pop()
            self.complete = self.complete or not (self._left or self._missed)
        encoded = (
            name.decode("utf-8", "replace").removeprefix(f"{PREFIX}{{").removesuffix("}:meta")
            for name in names
        )
        # An encoded name has no slash: a key with a slash belongs to another shard of a crawl.
        return [unquote(name) for name in encoded if "/" not in name]


def shards_left(nodes: Sequence[Any], crawl: str) -> set[int]:
    """Return the numbers of all stored shards except home. This scans all keys; blocking.

    Raises:
        redis.exceptions.RedisError: a node does not answer.
    """
    _, of_others = prefixes(crawl, MAX_SHARDS)
    names = (name for node in nodes for name in node.scan_iter(match=f"{of_others}meta", count=_PART))
    numbers = (re.search(rb"/([1-9]\d{0,3})}:meta$", name) for name in names)
    return {number for found in numbers if found and (number := int(found[1])) < MAX_SHARDS}
