"""The census of a crawl that this process is not a member of."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from scrapy_dq.backend.connection import Connection
from scrapy_dq.environment import data_dir
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import Census, FrontierUnavailable
from scrapy_dq.settings import Config


def look(config: Config) -> Census:
    """Return the census of the crawl that *config* names; blocking, changes nothing.

    Raises:
        FrontierError, ConfigError: there is no such Redis, or it gives no answer, or a shard gives none.
    """
    found: Future[Census] = Future()

    async def ask() -> None:
        connection = Connection(config, data_dir(config.data_dir))
        try:
            await connection.open()
            with connection.blocking() as client, as_unavailable(connection.target):
                overview = peek(client, config.crawl, most_members=0)
            if overview.unreachable:
                raise FrontierUnavailable(f"no answer from {len(overview.unreachable)} of the crawl's shards")
            found.set_result(overview.census)
        finally:
            await connection.close()

    def run() -> None:
        # In a thread of its own: the caller's may have a running event loop.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(ask())
        except Exception as error:
            if not found.done():
                found.set_exception(error)
        finally:
            loop.close()

    threading.Thread(target=run, name="scrapy-dq-look", daemon=True).start()
    return found.result()
