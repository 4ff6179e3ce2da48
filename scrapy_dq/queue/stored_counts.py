"""The census of a crawl that this process is not a member of."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from scrapy_dq.backend.connection import Connection
from scrapy_dq.environment import data_dir
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census
from scrapy_dq.settings import Config


def look(config: Config) -> Census:
    """Return the census of the crawl that *config* names; blocking, changes nothing.

    Raises:
        FrontierError, ConfigError: there is no such Redis, or it gives no answer.
    """
    found: Future[Census] = Future()

    async def ask() -> None:
        connection = Connection(config, data_dir())
        try:
            client = await connection.open()
            found.set_result(await Frontier(client, config.crawl, config.order).census())
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
