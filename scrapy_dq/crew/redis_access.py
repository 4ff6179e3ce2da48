"""The crawl's Redis for a crew: checked as by a worker, and kept running until the crew has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapy_dq.backend.connection import Connection
from scrapy_dq.factory import flush_crawl
from scrapy_dq.frontier.admin.overview import peek_shard
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.inspection.place import Place
from scrapy_dq.settings import Config
from scrapy_dq.text import CREW_NAME


@contextmanager
def opened(config: Config, data_dir: Path) -> Iterator[Place]:
    """Yield the crawl, with a blocking client. An embedded Redis runs until the end of the block.

    Raises:
        FrontierRefused: it cannot be reached, or would lose the crawl.
    """
    connection = Connection(config, data_dir)
    try:
        asyncio.run(_prepare(connection, config))
        with connection.blocking() as client:
            yield Place(client, connection.target, config, lambda _: client, lambda: [client])
    finally:
        asyncio.run(connection.close())


async def _prepare(connection: Connection, config: Config) -> None:
    """Check Redis, and flush the crawl if that is configured: each worker would flush that of the others."""
    try:
        await connection.open()
        if config.flush_on_start:
            await flush_crawl(config, connection)
    finally:
        await connection.disconnect()  # a client of an event loop that has ended cannot be closed


def run_name_for(client: Any, config: Config) -> str:
    """Return the DQ_RUN_NAME for the workers, if the settings have none.

    With a name, a worker that joins late, or is restarted when the run ends, finds the run finished and does
    not start the next one. A run that is continued keeps its name, if it has one. Crews that begin at once
    get the same: it says which run of the crawl theirs will be.

    Raises:
        FrontierUnavailable, FrontierRefused: Redis does not answer, or refuses.
    """
    with as_unavailable():
        seen = peek_shard(client, Shard(config.crawl, HOME))
        is_open = seen.phase == "open"
        name = seen.run_name if is_open else ""
        if name:
            return name
    number = seen.run if is_open else seen.run + 1
    return CREW_NAME + (f"{seen.epoch}-{number}" if seen.epoch else "first")
