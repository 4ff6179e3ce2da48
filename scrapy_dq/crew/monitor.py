"""Reads the crawl's state twice a second, in a thread, so that an unresponsive Redis blocks nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scrapy_dq.frontier.admin.backlog import Upcoming, awaited_turn
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError

EVERY_S = 0.5


class Monitor:
    """The newest state of a crawl.

    Attributes:
        overview: the state; None before the first was read.
        turn: the entry that its workers wait for, if they hold nothing and it may not be leased yet.
        problem: why the last attempt to read it failed; "" if it did not.
        at: when *overview* was requested (monotonic).
    """

    def __init__(self, client: Any, crawl: str) -> None:
        self.overview: Overview | None = None
        self.turn: Upcoming | None = None
        self.problem = ""
        self.at = 0.0
        self._client = client
        self._crawl = crawl
        self._over = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[Monitor]:
        """Read the state repeatedly, until the end of the block."""
        thread = threading.Thread(target=self._look_on, name="monitor", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def look(self) -> None:
        """Read the state once; an error is stored in `problem`."""
        at = time.monotonic()
        try:
            with as_unavailable():
                seen = peek(self._client, self._crawl)
                self.turn = awaited_turn(self._client, self._crawl, seen)
                self.overview, self.problem = seen, ""
            self.at = at
        except FrontierError as error:
            self.problem = str(error)

    def _look_on(self) -> None:
        while True:
            self.look()
            if self._over.wait(EVERY_S):
                return
