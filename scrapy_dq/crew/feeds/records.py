"""Which run of each crawl a feed holds: one file in the data directory, for all feeds.

`scrapy crawl` and `scrapy dq crawl` use the same one: otherwise each of both would replace what the other has
scraped in the run. A record stays after the end: a finished run may be reopened (`scrapy dq retry`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.own_files import make_private
from scrapy_dq.filesystem import sync_folder

try:
    import fcntl
except ImportError:  # Windows: this module can be imported, `scrapy dq crawl` says what to do
    fcntl = None  # type: ignore[assignment]

POLL_S = 0.05
LONGEST_LOCK_S = 10.0
"""How long another process may hold the records. It needs milliseconds."""
MOST_FEEDS = 1_000
"""The newest are kept: `%(time)s` gives each run a feed of another name."""


class Run(NamedTuple):
    """One life of a crawl."""

    epoch: str
    number: int

    @property
    def name(self) -> str:
        """No other run of any crawl has the same."""
        return f"{self.epoch}.{self.number}"


class Record:
    """Which run of each crawl a feed holds, for the process that has locked the records.

    Attributes:
        problem: why nothing is recorded; "": it is.
    """

    def __init__(self, target: Path, path: Path | None, problem: str = "") -> None:
        self.problem = problem
        self._target = str(target)
        self._path = path
        found = read_json(path) if path else None
        self._feeds: dict[str, Any] = found if isinstance(found, dict) else {}
        runs = self._feeds.get(self._target)
        self._runs: dict[str, Any] = runs if isinstance(runs, dict) else {}

    def holds(self, run: Run) -> bool:
        return run.name in self._runs.values()

    def knows(self, crawl: str) -> bool:
        """Tell whether a run of *crawl* is recorded."""
        return crawl in self._runs

    def note(self, crawl: str, run: Run) -> None:
        """Record that the feed holds *run*.

        It is on the disk then: after a power loss, the next worker must not empty a feed that has new items.
        """
        self._runs[crawl] = run.name
        self._feeds.pop(self._target, None)
        self._feeds[self._target] = self._runs
        for oldest in list(self._feeds)[:-MOST_FEEDS]:
            del self._feeds[oldest]
        if self._path is not None:
            write_json(self._path, self._feeds)


@contextmanager
def record_of(target: Path, home: Path) -> Iterator[Record]:
    """Lock the records, and yield the record of a feed.

    If the data directory cannot be used, the record is empty and forgets what is noted.

    Args:
        home: the data directory.
    """
    with ExitStack() as stack:
        path, problem = None, ""
        try:
            folder = folder_in(home)
            lock = os.open(folder / "runs.lock", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, lock)
            lock_alone(lock, LONGEST_LOCK_S)
            path = folder / "runs"
        except (OSError, CrewError) as error:
            problem = str(error)
        yield Record(target, path, problem)


def folder_in(home: Path) -> Path:
    """Return the folder of the records, and of the notes of crews, in the data directory *home*.

    A crew empties and joins the feeds that they name: other users must not write there.

    Raises:
        CrewError, OSError: as `make_private`.
    """
    make_private(home, may_be_link=True)
    make_private(home / "feeds")
    return home / "feeds"


def lock_alone(descriptor: int, longest_s: float) -> None:
    """Wait until no other process locks a file, and lock it until it is closed; not on Windows.

    Raises:
        TimeoutError: another process has locked it for longer than *longest_s*.
    """
    deadline = time.monotonic() + longest_s
    while fcntl is not None and not flock(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has locked it for {longest_s:g} s")
        time.sleep(POLL_S)


def flock(descriptor: int) -> bool:
    """Take an exclusive lock without waiting; False if another process has one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_json(path: Path) -> Any:
    """Return what a small file holds; None if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text())
    return None


def write_json(path: Path, value: Any) -> None:
    """Replace a small file; a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    # O_EXCL: never through a link that another user has put there.
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)
