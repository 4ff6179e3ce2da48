"""Make a crawl forget that it has seen a request: the next time it is found, it is crawled again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Order
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import refuse

MAX_FINGERPRINTS = 1_000
"""Of one call: a script holds Redis while it runs."""


def forget(client: Any, crawl: str, fingerprints: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Forget at most MAX_FINGERPRINTS requests, and return how many of them were known; blocking.

    Workers that live learn of it by their next exchange.

    Args:
        client: a `redis` client that decodes nothing.
        fingerprints: as the crawl's fingerprinter makes them; and what another scheduler, whose crawl may
            have been adopted, would call the same request.
    Returns:
        None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    Source: transitions/forget.lua
    """
    args = (msgpack.packb([pair[i] for pair in fingerprints], use_bin_type=False) for i in (0, 1))
    reply = Script("forget", Order.FIFO).call_blocking(client, keys.meta(crawl), *args)
    refuse(reply)
    return int(reply[1]) if reply[0] == b"OK" else None
