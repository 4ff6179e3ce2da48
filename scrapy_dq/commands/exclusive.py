"""Shared by the commands that need exclusive access to a crawl: no worker may be alive."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from scrapy_dq.backend.connection import Connection
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import frontier_of
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.worker.identity import certainly_dead, own_identity
from scrapy_dq.inspection.place import Place
from scrapy_dq.settings import Config
from scrapy_dq.text import printable

T = TypeVar("T")


@asynccontextmanager
async def connected(config: Config) -> AsyncIterator[Callable[[int], Awaitable[Frontier]]]:
    """Yield a function that takes the number of a shard and returns the frontier of this shard.

    The shard belongs to the crawl that *config* names.

    Raises:
        FrontierRefused: the embedded Redis cannot be started or joined, or a node is not suitable.
    """
    connection = Connection(config, data_dir(config.data_dir))

    async def of_shard(number: int) -> Frontier:
        return frontier_of(config, await connection.client_of(number), shard=number)

    try:
        await connection.connect()
        yield of_shard
    finally:
        await connection.close()


def with_frontiers(place: Place, call: Callable[[list[Frontier]], Awaitable[T]], *, shards: int = 0) -> T:
    """Call *call* with the frontiers of all shards of the crawl, home first, and return its result.

    Args:
        shards: number of shards; 0 means as many as the crawl has.
    """

    async def connect_and_call() -> T:
        async with connected(place.config) as of_shard:
            return await call([await of_shard(number) for number in range(shards or len(place.shards))])

    return asyncio.run(connect_and_call())


@contextmanager
def continued(how: str) -> Iterator[None]:
    """Tell the user *how* to continue if the command is interrupted or Redis does not answer."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"interrupted. {how}") from None
    except FrontierUnavailable as error:
        raise CommandError(f"{error}. {how}") from None


async def announce_wait(frontier: Frontier, ttl_s: float) -> None:
    """Print that the command now watches the registered workers that may be alive, and their first ids."""
    own = own_identity()
    maybe_alive = [m.worker_id for m in await frontier.members() if not certainly_dead(m.identity, own)]
    if maybe_alive:
        names, be = printable(", ".join(maybe_alive[:5])), "is" if len(maybe_alive) == 1 else "are"
        print(f"Watching for up to {ttl_s:g} s whether {names} {be} alive", file=sys.stderr)
