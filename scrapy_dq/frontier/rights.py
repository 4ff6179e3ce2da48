"""The least rights of a user of Redis, by role: of `scrapy dq doctor --acl`, and of errors that name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from scrapy_dq.frontier import keys


class Role(NamedTuple):
    """What a user is for."""

    who: str
    commands: str
    """The commands that it may call, as ACL SETUSER takes them."""


ROLES = {
    "crawler": Role(
        "workers, programs with a Queue, commands that change a crawl",
        "+@connection +@read +@write -@dangerous -@scripting +eval +evalsha +script|exists +time +info",
    ),
    "observer": Role(
        "commands that only look",
        "+@connection +@read -@dangerous +eval +evalsha +time +info +cluster|slots",
    ),
    "feeder": Role("whoever pushes start requests of a RedisSpider", "+@connection -@dangerous"),
}
ALL_CRAWLS = f"{keys.PREFIX}*"
_PUSHES = {"list": "+rpush +lpush", "set": "+sadd", "zset": "+zadd", "stream": "+xadd"}


def acl_of(
    role: str,
    crawl: str = "",
    start_keys: Sequence[str] = (),
    kind: str = "list",
    others: Sequence[str] = (),
    db: int = 0,
    shards: int = 1,
) -> str:
    """Return the rules for ACL SETUSER that let a user of *role* do its work, and nothing else.

    Args:
        crawl: the only crawl; empty: all of them.
        start_keys: those of its spider; a feeder needs one.
        kind: what the start keys are: list, set, zset or stream.
        others: patterns of more keys that a crawler uses, such as those of its items.
        db: the number of the database.
        shards: how many the crawl has.
    """
    fed = [literal(name) for name in start_keys]
    own = [f"{each}*" for each in keys.prefixes(crawl, shards)] if crawl else [ALL_CRAWLS]
    patterns = {"feeder": fed, "observer": own}.get(role, [*own, *fed, *others])
    more = (f" {_PUSHES[kind]}" if role == "feeder" else "") + (" +select" if db else "")  # for Redis 6.2
    return " ".join((*(f"~{each}" for each in patterns), ROLES[role].commands + more))


def literal(name: str) -> str:
    """Return a pattern that matches the key *name*.

    A pattern cannot have blanks, and redis-cli would read quotes: in their place it matches any character.
    """
    return re.sub(r"[\s\"']", "?", re.sub(r"([\\*?\[\]])", r"\\\1", name))
