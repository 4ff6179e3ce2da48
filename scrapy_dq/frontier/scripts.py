"""Loads the Lua: one script per transition, built from the files in lua/ by plain concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from scrapy_dq.frontier.model import Order, Seen

_BASE = ("keys", "order_{order}", "state", "types", "discarded", "kinds", "words")
_COMMON = ("politeness", "entry", "bands", "partition")
_SEEN = {
    Seen.EXACT: ("seen_exact",),
    Seen.EXPIRING: ("seen_expiring",),
    Seen.COMPACT: ("buckets", "seen_compact"),
}
_PARTS: dict[str, tuple[str, ...]] = {
    "join": ("member", "limits"),
    "rejoin": ("release", "member"),
    "exchange": (
        "damage", "put", "delayed", "sent", "block", "ack", "release", "bury", "fail", "settle", "grants",
        "serve", "lease", "claim", "starts", "finish",
    ),
    "adopt": (),
    "fence": ("starts",),
    "drain": ("bury", "member"),
    "leave": ("release", "member", "starts"),
    "beat": (),
    "flush": ("member",),
    "limit": ("limits", "block"),
    "steer": (),
    "retry": (),
    "forget": (),
    "convert": (),
    "sweep": (),
    "audit": (),
    "overview": ("starts",),
    "sizes": (),
    "upcoming": (),
    "present": (),
    "tally": (),
}  # fmt: skip
LOOKS = ("sizes", "upcoming", "present")
"""Scripts that only read, for command lines."""
BY_HAND = ("steer", "retry", "forget", "convert")
"""Scripts that change something, for command lines alone."""
TRANSITIONS = tuple(name for name in _PARTS if name not in (*LOOKS, *BY_HAND))


@cache
def _lua(name: str) -> str:
    return files("scrapy_dq.frontier").joinpath("lua").joinpath(f"{name}.lua").read_text("utf-8")


@cache
def source(transition: str, order: Order, seen: Seen = Seen.EXACT) -> str:
    """Return the whole script of *transition* for crawls served in *order*.

    Args:
        seen: the one kind of seen that an exchange can serve; all others go by what is stored.
    """

    def joined(*names: str) -> str:
        return "\n".join(_lua(name.format(order=order.value.replace("-", "_"))) for name in names)

    kinds = (seen,) if transition == "exchange" else Seen
    seen_by = (name for kind in kinds for name in _SEEN[kind])
    # Of the captured locals of a function, a closure looks through all to find its own: those that every
    # function needs stand around the others. That saves a tenth of an exchange.
    rest = joined(*_COMMON, *seen_by, *_PARTS[transition], transition)
    return f"{joined(*_BASE)}\nreturn (function()\n{rest}\nend)()"


class Script:
    """One transition, called by its digest; Redis is given the source when it does not know it."""

    def __init__(self, transition: str, order: Order, seen: Seen = Seen.EXACT) -> None:
        self.source = source(transition, order, seen)
        self.sha = sha1(self.source.encode()).hexdigest()

    async def call(self, client: Any, keys: Sequence[str], *args: Any) -> Any:
        """Run on a `redis.asyncio` client; raises what redis-py raises."""
        try:
            return await client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await client.eval(self.source, len(keys), *keys, *args)

    def call_blocking(self, client: Any, key: str, *args: Any) -> Any:
        """Run on a `redis` client; for threads and command lines, never for the event loop."""
        try:
            return client.evalsha(self.sha, 1, key, *args)
        except NoScriptError:
            return client.eval(self.source, 1, key, *args)
