"""Takes snapshots of the crawl, in a thread, so that an unresponsive Redis blocks nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.snapshot import EVERY_S, Snapshot, Watcher

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.backlog import Upcoming
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.inspection.place import Place


class Monitor:
    """The newest snapshot of a crawl."""

    def __init__(self, place: Place) -> None:
        self.problem = ""
        """Why the last attempt to take a snapshot failed; empty: it did not."""
        self._newest: Snapshot | None = None
        self._watcher = Watcher(place)
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def overview(self) -> Overview | None:
        """The counts; None before the first snapshot."""
        return self._newest.overview if self._newest else None

    @property
    def turn(self) -> Upcoming | None:
        """The entry that workers without requests wait for."""
        return self._newest.turn if self._newest else None

    @property
    def at(self) -> float:
        """When the snapshot was requested (monotonic)."""
        return self._newest.asked_at if self._newest else 0.0

    @contextmanager
    def looking(self) -> Iterator[Monitor]:
        """Take snapshots repeatedly, until the end of the block."""
        thread = threading.Thread(target=self._look_on, name="monitor", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def look(self) -> None:
        """Take a snapshot; an error is stored in `problem`."""
        try:
            with self._lock, as_unavailable():
                self._newest = self._watcher.look(turn=True)
            self.problem = ""
        except FrontierError as error:
            self.problem = str(error)

    def _look_on(self) -> None:
        while True:
            self.look()
            if self._over.wait(EVERY_S):
                return
