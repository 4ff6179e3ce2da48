"""Fills a frontier as quickly as Redis accepts entries, with several real exchanges in flight at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from redis.asyncio import Connection

from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.model import MAX_MOVES, Identity, Order, Seeding, Seen, Status
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.wire import pack_moves
from support.live_frontier import IDENTITY

AHEAD = 4
"""The number of exchanges that may be in flight at a time."""


class _OneConnection:
    """Sends the calls of a Frontier as they are made, and reads the answers in the same order."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self.connection = Connection(host=place.hostname or "", port=place.port or 0, socket_timeout=60)
        self._sending = asyncio.Lock()
        self._last: asyncio.Future[None] | None = None

    async def evalsha(self, *args: Any) -> Any:
        return await self._call("EVALSHA", *args)

    async def eval(self, *args: Any) -> Any:
        return await self._call("EVAL", *args)

    async def fcall(self, *args: Any) -> Any:
        return await self._call("FCALL", *args)

    async def function_load(self, source: str) -> Any:
        return await self._call("FUNCTION", "LOAD", source)

    async def _call(self, *words: Any) -> Any:
        async with self._sending:
            await self.connection.send_command(*words)
            before, self._last = self._last, asyncio.get_running_loop().create_future()
            mine = self._last
        if before is not None:
            await before
        try:
            return await self.connection.read_response()
        finally:
            mine.set_result(None)


class QuickWorker:
    """The only worker of a crawl, without buffer and outbox: the caller makes each exchange."""

    def __init__(
        self, url: str, crawl: str = "benchmark", identity: Identity = IDENTITY, seen: Seen = Seen.EXACT
    ) -> None:
        self._client = _OneConnection(url)
        self._frontier = Frontier(self._client, crawl, Order.PRIORITY_LIFO, seen=seen)
        self._identity = identity
        self._seq = self._held = 0

    async def join(self) -> None:
        """Connect, and start the crawl."""
        await self._client.connection.connect()  # type: ignore[no-untyped-call]
        joined = await self._frontier.join("worker", {}, uuid4().hex, self._identity)
        if joined.status is not Status.OK:
            raise RuntimeError(f"the frontier answered {joined.status.value}")
        self.epoch, self.run = joined.epoch, joined.run

    async def fill(self, puts: Iterable[Put]) -> None:
        """Put all *puts*. Raise RuntimeError if Redis does not accept one of them."""
        under_way: deque[asyncio.Task[Receipt]] = deque()
        batches = _batches(puts)
        # The first exchange is alone, because it may have to load the script.
        await self.exchange(next(batches, []))
        for batch in batches:
            under_way.append(asyncio.ensure_future(self.exchange(batch)))
            await asyncio.sleep(0)
            if len(under_way) > AHEAD:
                await under_way.popleft()
        for each in under_way:
            await each

    async def exchange(self, moves: Sequence[Move], want: int = 0) -> Receipt:
        """Make the next exchange. Raise RuntimeError unless all puts were new and *want* leases came."""
        self._seq += 1
        receipt = await self._frontier.exchange(
            Exchange(
                "worker", self.epoch, self.run, self._seq, want, Seeding.ACTIVE, self._held, pack_moves(moves)
            )
        )
        settled = sum(not isinstance(move, Put) for move in moves)
        if not receipt.applied or receipt.dropped or len(receipt.leases) != want:
            raise RuntimeError(
                f"{len(moves)} moves, {want} wanted: {receipt.status.value}, {len(receipt.dropped)} dropped, "
                f"{len(receipt.leases)} leased"
            )
        self._held += want - settled
        return receipt

    async def close(self, *, leave: bool = False) -> None:
        """Disconnect. With *leave*, first leave the crawl, so that others can continue it."""
        if leave:
            await self._frontier.leave("worker", self.epoch, self.run, False)
        await self._client.connection.disconnect()


def _batches(puts: Iterable[Put]) -> Iterator[list[Put]]:
    source = iter(puts)
    while batch := list(islice(source, MAX_MOVES)):
        yield batch
