"""Opens the crawl for a crew, keeps an embedded Redis running, and takes snapshots in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapy_dq.backend.connection import Connection
from scrapy_dq.factory import flush_crawl
from scrapy_dq.frontier.admin.overview import Overview, peek_shard
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.records import Entry
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import EVERY_S, Watcher
from scrapy_dq.settings import Config
from scrapy_dq.text import CREW_NAME


@contextmanager
def opened(config: Config, data_dir: Path) -> Iterator[Place]:
    """Yield the crawl, with a blocking client. An embedded Redis runs until the end of the block.

    Raises:
        ConfigError: redis-py cannot use the settings.
        FrontierRefused: Redis cannot be started or reached, denies access, is too old, or evicts keys of the
            crawl; or SCHEDULER_FLUSH_ON_START is set, and a worker is live.
    """
    connection = Connection(config, data_dir)
    try:
        asyncio.run(_prepare(connection, config))
        with connection.blocking() as client:
            yield Place(client, connection.target, config, lambda _: client, lambda: [client])
    finally:
        asyncio.run(connection.close())


async def _prepare(connection: Connection, config: Config) -> None:
    """Check Redis, and delete the crawl if SCHEDULER_FLUSH_ON_START is set.

    The parent of the crew does this, not a worker, because a restarted worker would delete the crawl again.
    """
    try:
        await connection.open()
        if config.flush_on_start:
            await flush_crawl(config, connection)
    finally:
        await connection.disconnect()  # a client cannot be closed after the end of its event loop


def run_name_for(client: Any, config: Config) -> str:
    """Return the DQ_RUN_NAME for the workers, if the settings have none.

    A worker may start late, or be restarted, when the run has just ended. With a name, this worker finds the
    run finished, and does not begin the next run. A continued run keeps its name, if it has one. Crews that
    begin at the same time get the same name: it contains the number of the run that they will join, or ends
    in `first` if Redis does not know the crawl.

    Raises:
        FrontierUnavailable, FrontierRefused: Redis does not answer, or refuses.
    """
    with as_unavailable():
        overview = peek_shard(client, Shard(config.crawl, HOME))
        is_open = overview.phase == "open"
        name = overview.run_name if is_open else ""
        if name:
            return name
    number = overview.run if is_open else overview.run + 1
    return CREW_NAME + (f"{overview.epoch}-{number}" if overview.epoch else "first")


class Monitor:
    """The newest snapshot of a crawl."""

    def __init__(self, place: Place) -> None:
        self.problem = ""
        """Why the last snapshot failed; empty if it succeeded."""
        self.overview: Overview | None = None
        """The counts; None before the first snapshot."""
        self.turn: Entry | None = None
        """The next entry, if a worker holds no lease and has to wait before it may lease this entry."""
        self.at = 0.0
        """Time (monotonic) at which the newest successful snapshot was requested."""
        self._watcher = Watcher(place)
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def polling(self) -> Iterator[Monitor]:
        """Take snapshots repeatedly, until the end of the block."""
        thread = threading.Thread(target=self._keep_polling, name="monitor", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def poll(self) -> None:
        """Take a snapshot; an error is stored in `problem`."""
        try:
            with self._lock, as_unavailable():
                found = self._watcher.snapshot(turn=True)
            self.overview, self.turn, self.at, self.problem = found.overview, found.turn, found.asked_at, ""
        except FrontierError as error:
            self.problem = str(error)

    def _keep_polling(self) -> None:
        while True:
            self.poll()
            if self._over.wait(EVERY_S):
                return
