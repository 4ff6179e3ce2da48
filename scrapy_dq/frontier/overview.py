"""A look at a crawl from outside, for progress displays and command lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.frontier import parse_members, refuse
from scrapy_dq.frontier.model import Census, Member, Order
from scrapy_dq.frontier.scripts import Script


@dataclass(frozen=True)
class Overview:
    """Phase, counts and workers of a crawl at one instant."""

    phase: str
    """absent, open or finished."""
    epoch: str
    run: int
    census: Census
    members: list[Member]


def peek(client: Any, crawl: str) -> Overview:
    """Read the state of *crawl* in one atomic, read-only step; blocking.

    Args:
        client: a `redis` client that decodes nothing, say from `scrapy_dq.connection.connect_url`.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    """
    reply = Script("overview", Order.FIFO).call_blocking(client, keys.meta(crawl))
    refuse(reply)
    phase, epoch, run, counts, members = reply
    return Overview(phase.decode(), epoch.decode(), int(run), Census(*counts), parse_members(members))
