"""Runs the scripts of one crawl, and turns errors of Redis into our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, RedisError

from scrapy_dq.frontier import keys, wire
from scrapy_dq.frontier.errors import as_unavailable, describe, is_denial, unavailable
from scrapy_dq.frontier.model import FrontierRefused, StartKeys
from scrapy_dq.frontier.scripts import Function, Script

if TYPE_CHECKING:
    from typing_extensions import Self


class Caller:
    """One crawl, or a shard of it, behind one `redis.asyncio` client.

    The client must not retry calls itself, because then a script could run twice.
    """

    def __init__(self, client: Any, name: keys.Shard, start_keys: StartKeys | None) -> None:
        self.client = client
        self.crawl = name.crawl
        self.name = name
        self.start_keys = start_keys
        self._keys = keys.fixed(name)
        self._start_keys = start_keys.keys if start_keys else ()
        self._start_kind = start_keys.kind if start_keys else ""
        self._keys_of = dict.fromkeys(("join", "exchange"), (*self._keys, *self._start_keys))
        """The keys of the transitions that also declare start keys; the other transitions have `_keys`. A
        join reads no start key. But because a join declares the start keys, Redis refuses it to a user who
        may not read them. Otherwise the worker would join, and never get a start request."""
        self._scripts: dict[str, Script] = {"exchange": Function("exchange")}
        self._denied = False
        """Whether Redis has denied a command. If so, the next call first checks all commands (probe.lua)."""

    def using(self, client: Any) -> Self:
        """Return a copy of this frontier behind another client."""
        other = copy(self)
        other.client = client
        other._denied = False  # a heartbeat needs fewer rights than an exchange
        return other

    @asynccontextmanager
    async def on_one_connection(self) -> AsyncIterator[tuple[Self, Any]]:
        """Yield a copy of this frontier with its own connection, and the client of that connection."""
        with as_unavailable():
            client = await self.client.client().initialize()
        try:
            yield self.using(client), client
        finally:
            await client.aclose()

    def _script(self, transition: str) -> Script:
        if transition not in self._scripts:
            self._scripts[transition] = Script(transition)
        return self._scripts[transition]

    async def _call(self, transition: str, *args: Any) -> Any:
        args = tuple(
            each.encode("utf-8", "surrogateescape") if isinstance(each, str) else each for each in args
        )
        try:
            keys_of = self._keys_of.get(transition, self._keys)
            if self._denied:
                wire.refuse(await self._script("probe").call(self.client, self._keys, self._start_kind))
                self._denied = False
            reply = await self._script(transition).call(self.client, keys_of, *args)
        except (RedisError, OSError, TimeoutError) as error:
            if is_denial(error):
                self._denied = True
                if isinstance(error, AuthenticationError):
                    login = "Check the user and password in REDIS_URL or REDIS_PARAMS"
                    raise FrontierRefused(f"Redis denies access: {describe(error)}. {login}") from error
                raise FrontierRefused(wire.denied(describe(error), self._start_keys)) from error
            if "WRONGTYPE" in str(error):
                raise FrontierRefused(wire.wrong_type_in(self.crawl)) from error
            raise unavailable(error) from error
        wire.refuse(reply)
        return reply
