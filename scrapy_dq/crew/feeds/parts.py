"""The folder of parts that a crew's workers write, beside a feed while the crew works.

    crew.lock     exclusive: held by the one `scrapy dq crawl` that writes this feed
    workers.lock  shared: held by each worker that may still write; joining waits for it
    *.part        what one worker process has written, in one run; *.lost.part: items are missing in it
    joined        the new feed, while it is built
    joined.json   the marker that `joined` replaces the feed: which parts it holds, up to which run

The kernel releases all locks when their holders die, kill -9 included. What a feed holds is in `records.py`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from scrapy_dq.crew.errors import CrewError, FeedInUse
from scrapy_dq.crew.feeds.records import POLL_S, Record, Run, flock, read_json, record_of, write_json
from scrapy_dq.crew.own_files import make_private, real_path
from scrapy_dq.filesystem import sync_folder

try:
    import fcntl
except ImportError:  # Windows: feeds.py can be imported, `scrapy dq crawl` says what to do
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".parts"
_LOST = ".lost.part"
CHANCES = 100


def part_path(folder: Path, epoch: str, run: int, worker: int) -> Path:
    """Return a path that no other process uses; parts sort by run, then by the time they were begun."""
    return folder / f"{epoch}.{run:09d}.{time.time_ns():020d}.{worker:03d}-{os.getpid()}.part"


def run_of(part: Path) -> Run:
    """Return the run in which a part was written; for any other name, a run that does not exist."""
    with suppress(ValueError):
        epoch, run, _ = part.name.split(".", 2)
        return Run(epoch, int(run))
    return Run("", -1)


def mark_lost(part: Path) -> None:
    """Note in the name of a part that an item is missing in it: a full disk has room for that."""
    if not lacks_items(part):
        with suppress(OSError):
            part.rename(part.with_suffix(_LOST))


def lacks_items(part: Path) -> bool:
    """Tell whether a worker could not write each of its items to *part*."""
    return part.name.endswith(_LOST)


class PartsFolder:
    """The folder of one feed, for the crew that holds its lock; `record` is for everyone."""

    def __init__(self, target: Path, home: Path) -> None:
        """Args:
            home: the data directory, which has the record of the feed.
        Raises:
            CrewError: *target* is a link of another user.
        """
        self._home = home
        self.target = real_path(target)
        self.path = self.target.with_name(self.target.name + SUFFIX)
        self.joined = self.path / "joined"
        self._marker = self.path / "joined.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and hold it; at the end, remove it if nothing is left in it.

        Raises:
            FeedInUse: another crew writes this feed.
            CrewError: the folder cannot be made.
        """
        lock = self._take_lock()
        try:
            try:
                self._recover()
            except OSError as error:
                raise CrewError(f"what a killed crew left in {self.path} cannot be used: {error}") from error
            yield
        finally:
            self._tidy()
            os.close(lock)

    def _take_lock(self) -> int:
        for chance in range(CHANCES, 0, -1):
            try:
                make_private(self.path)
                lock = _open(self.path / "crew.lock")
            except OSError as error:
                if chance > 1 and isinstance(error, (FileNotFoundError, FileExistsError)):
                    continue  # its last holder removed the folder in between
                raise CrewError(
                    f"{self.path} cannot be used: {error.strerror}. The workers write the parts of the feed "
                    f"there: the folder of the feed must be writable"
                ) from error
            if not flock(lock):
                os.close(lock)
                raise FeedInUse(f"another `scrapy dq crawl` writes {self.target}")
            with suppress(OSError):
                if os.path.samestat(os.fstat(lock), os.stat(self.path / "crew.lock")):
                    return lock
            os.close(lock)
        raise CrewError(f"{self.path} cannot be used: it is removed repeatedly")

    @contextmanager
    def record(self) -> Iterator[Record]:
        """Lock the record of this feed; first finish what a crew had begun that was killed while it joined.

        Raises:
            CrewError: others could write to the folder of parts.
            OSError: what that crew had begun cannot be finished.
        """
        with record_of(self.target, self._home) as record:
            if self._marker.exists() and not self.joined.exists():
                make_private(self.path)
                self._settle(record)
            yield record

    def has_part_of(self, run: Run | None) -> bool:
        """Tell whether anything is left that was written in *run*; None: in any."""
        return any(run in (None, run_of(part)) for part in self.path.glob("*.part"))

    def finished_parts(self, waiting: Callable[[], None]) -> list[Path]:
        """Return all parts, in order, once no worker writes to them; *waiting* is called meanwhile.

        After a kill of their `scrapy dq crawl`, workers continue for a moment. Removing a part that a worker
        still writes would lose items.
        """
        make_private(
            self.path
        )  # whoever can write to the folder above it may have put their own in its place
        lock = _open(self.path / "workers.lock")
        try:
            while not flock(lock):
                waiting()
                time.sleep(POLL_S)
            # Under the lock: a part that is begun after this is not in the list.
            return sorted(self.path.glob("*.part"))
        finally:
            os.close(lock)

    def has_feed(self) -> bool:
        """Tell whether there is a feed to be joined to.

        Raises:
            CrewError: it is no file: another user may have put it there since the crawl has begun.
        """
        try:
            found = self.target.lstat()
        except OSError:
            return False  # there is none yet, or opening it will say why not
        if not stat.S_ISREG(found.st_mode):
            raise CrewError(f"{self.target} is not a file any more: remove it")
        return True

    def open_joined(self) -> IO[bytes]:
        """Return `joined`, empty, for writing.

        Raises:
            CrewError: another user has put something in place of the folder.
            OSError: it is a link, or cannot be opened.
        """
        make_private(self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        return os.fdopen(os.open(self.joined, flags, 0o666), "wb")

    def replace(self, parts: list[Path], crawl: str, run: Run) -> None:
        """Replace the feed with `joined`, record its *run*, and remove the *parts* that it holds.

        CRASH before the marker: joined again, from the same parts. Between marker and rename: the same.
        After the rename: the marker exists and `joined` does not: whoever opens the record next records the
        run and removes the parts; they are not joined again.
        """
        with suppress(OSError):
            before = self.target.lstat()
            # Never a program of another user that runs as this one.
            if before.st_uid == os.geteuid():
                self.joined.chmod(before.st_mode & 0o666)
        write_json(self._marker, {"parts": [part.name for part in parts], "crawl": crawl, "run": run})
        # Under its lock: a `scrapy crawl -O` in between would take the feed for an older run's, and empty it.
        with self.record() as record:
            os.replace(self.joined, self.target)
            sync_folder(self.path)
            sync_folder(self.target.parent)
            self._settle(record)

    def drop(self, parts: list[Path]) -> None:
        """Remove *parts* that have no items, and `joined`; the feed stays."""
        for left in (*parts, self.joined):
            left.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Finish, or undo, what a killed crew had begun."""
        if self._marker.exists():
            with self.record():
                pass
        for left in (self._marker, self.joined):
            left.unlink(missing_ok=True)

    def _settle(self, record: Record) -> None:
        marker = read_json(self._marker) or {}
        if marker.get("run"):
            record.note(marker.get("crawl", ""), Run(*marker["run"]))
        for name in marker.get("parts", ()):
            (self.path / Path(name).name).unlink(missing_ok=True)
        self._marker.unlink(missing_ok=True)

    def _tidy(self) -> None:
        names = {"crew.lock", "workers.lock"}
        with suppress(OSError):
            if {each.name for each in self.path.iterdir()} <= names:
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()


def write_lock(folder: Path) -> int:
    """Register as a writer of parts in *folder*, as long as the descriptor is open.

    Raises:
        CrewError: others could write there.
        OSError: the folder cannot be made.
    """
    make_private(folder)
    lock = _open(folder / "workers.lock")
    fcntl.flock(lock, fcntl.LOCK_SH)  # it is held exclusively only for a moment
    return lock


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
