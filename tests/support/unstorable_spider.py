"""Four in ten requests of this spider cannot be stored. The worker that yields one also crawls it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import scrapy
from scrapy.http import Response

from support.tree_spider import TreeSpider

BODY_BYTES = 2 * 1024 * 1024
EVERY = 10
KINDS: dict[int, tuple[Callable[[TreeSpider], dict[str, Any]], str]] = {
    1: (lambda spider: {"callback": lambda response: spider.parse(response)}, "<lambda> is not a method"),
    3: (lambda spider: {"meta": {"file": sys.stderr}}, "TextIOWrapper' cannot be stored"),
    5: (lambda spider: {"meta": {"lock": threading.Lock()}}, "lock' cannot be stored"),
    7: (lambda spider: {"body": b"x" * BODY_BYTES}, "bytes are more than DQ_MAX_ENTRY_BYTES = 1,048,576"),
}
"""For the number of a page modulo EVERY: arguments of its request, and a part of the warning about it."""


class UnstorableSpider(TreeSpider):
    """Follows the links to the pages of KINDS with requests that cannot be stored."""

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield the results of TreeSpider, with changed requests for the pages of KINDS."""
        for result in super().parse(response):
            if isinstance(result, scrapy.Request) and (kind := kind_of(result.url)):
                result = result.replace(**kind[0](self))
            yield result


def kind_of(path: str) -> tuple[Callable[[TreeSpider], dict[str, Any]], str] | None:
    """Return a page's entry of KINDS, or None if its request can be stored."""
    return KINDS.get(int(path.rpartition("/")[2]) % EVERY)
