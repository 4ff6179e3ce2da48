"""The rights that a user of Redis needs, by role, for `scrapy dq doctor --acl` and for error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from scrapy_dq.frontier import keys


class Role(NamedTuple):
    """A role of a user of Redis, and its rights."""

    users: str
    commands: str
    """The rules for commands in the form that ACL SETUSER takes."""


ROLES = {
    "crawler": Role(
        "workers, programs with a Queue, commands that change a crawl",
        "+@connection +@read +@write -@dangerous -@scripting +eval +evalsha +script|exists +time +info",
    ),
    "observer": Role(
        "commands that only read",
        "+@connection +@read -@dangerous +eval +evalsha +time +info +cluster|slots",
    ),
    "feeder": Role("programs that push start requests of a RedisSpider", "+@connection -@dangerous"),
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
        crawl: the only crawl to which the user has access; empty: all crawls.
        start_keys: the start keys of the spider; a feeder needs at least one.
        kind: the type of the start keys: list, set, zset or stream.
        others: patterns of other keys that a crawler uses, such as keys for its items.
        db: the number of the database.
        shards: the number of shards of the crawl.
    """
    fed = [literal(name) for name in start_keys]
    own = [f"{each}*" for each in keys.prefixes(crawl, shards)] if crawl else [ALL_CRAWLS]
    patterns = {"feeder": fed, "observer": own}.get(role, [*own, *fed, *others])
    # In Redis 6.2, the category @connection does not contain SELECT.
    more = (f" {_PUSHES[kind]}" if role == "feeder" else "") + (" +select" if db else "")
    return " ".join((*(f"~{each}" for each in patterns), ROLES[role].commands + more))


def literal(name: str) -> str:
    """Return a pattern that matches the key *name*.

    A pattern cannot have blanks, and redis-cli would interpret quotes. So `?`, which matches any character,
    replaces both.
    """
    return re.sub(r"[\s\"']", "?", re.sub(r"([\\*?\[\]])", r"\\\1", name))
