"""The folder of a crawl's items: the journals of a crew's workers, and notes about the runs in each feed.

`scrapy crawl` and `scrapy dq crawl` share the notes. Otherwise each would replace the items that the other
has scraped in the run. The notes stay after the run, because `scrapy dq retry` may reopen it.

crew.lock   held by the one `scrapy dq crawl` (with feeds) or `scrapy dq items` that stores or exports items
            here, and by its exporting processes
notes.lock  held while a worker records that a feed may contain items of a run
*.journal   the records of one worker process in one run
*.exported  a journal whose items are in all feeds. If its run continues or is retried, the run's feeds are
            written again from all of the run's journals. A complete export of another run deletes the journal
*.time      start time of the first command that exported the run (`%(time)s` in feed names), and whether the
            run had begun before that command
*.notes     how much of a feed is older than the run, and the inode and size of each exported file
            (`replacing.py`); empty if only `scrapy crawl` wrote the feed
export.log  the log of the last exporting processes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.own_files import make_private
from scrapy_dq.filesystem import sync_folder
from scrapy_dq.scheduling.feeds import DONE, OPEN, items_folder

try:
    import fcntl
except ImportError:  # Windows can import this module; `scrapy dq crawl` explains what to do
    fcntl = None  # type: ignore[assignment]


class Run(NamedTuple):
    """One run of a crawl."""

    epoch: str
    number: int


class ItemsFolder:
    """The folder of one crawl in the data directory *home*."""

    def __init__(self, home: Path, crawl: str) -> None:
        self._home = home
        self.crawl = crawl
        self.path = items_folder(home, crawl)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Make the folder, lock it, and yield the descriptor of the lock.

        Raises:
            CrewError: another crew uses the folder or still exports, or the folder cannot be made.
        """
        try:
            self._make()
            lock = os.open(self.path / "crew.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CrewError(
                f"{self.path} cannot be used: {error.strerror}. Workers store items there until the export; "
                f"set DQ_DATA_DIR to use another folder"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CrewError(
                    "another `scrapy dq crawl` or `scrapy dq items` is using this crawl's items"
                ) from None
            yield lock
        finally:
            os.close(lock)

    def journals(self, run: Run) -> list[Path]:
        """Return the journals of a run, oldest first."""
        return [path for path in self.all_journals() if run_of(path) == run]

    def newest_run(self) -> Run | None:
        """Return the run of the newest journal, or None if there is no journal."""
        newest = max(self.all_journals(), key=lambda path: path.name.split(".")[2], default=None)
        return run_of(newest) if newest else None

    def open_journals(self, run: Run | None = None) -> list[Path]:
        """Return the journals whose items some feeds may lack; *run* selects one run."""
        return [path for path in self.all_journals() if path.suffix == OPEN and run in (None, run_of(path))]

    def settle(self, journals: list[Path], run: Run) -> None:
        """Record that all feeds hold the items of these journals, and remove the files of other runs.

        Journals of other runs stay if some feeds may lack their items.

        CRASH anywhere: the next crew exports the open journals again, with the same result.
        """
        for path in journals:
            if path.suffix == OPEN:
                path.rename(path.with_suffix(DONE))
        for path in self.path.iterdir():
            if run_of(path) not in (None, run) and path.suffix != OPEN:
                path.unlink()

    def state(self, run: Run, suffix: str) -> Path:
        """Return the path of a file about a run."""
        return self.path / f"{run.epoch}.{run.number:09d}.{suffix}"

    def notes_of(self, run: Run, target: Path) -> Path:
        """Return the path of the notes on a feed in a run.

        The file exists once the feed may contain items of the run.
        """
        return self.state(run, f"{_digest(target)}.notes")

    def older_notes(self, run: Run, target: Path) -> list[Path]:
        """Return the paths of the notes on a feed in other runs."""
        notes = self.path.glob(f"*.{_digest(target)}.notes")
        return [path for path in notes if path != self.notes_of(run, target)]

    @contextmanager
    def beginning(self, run: Run, target: Path) -> Iterator[tuple[bool, bool]]:
        """Record that a feed may contain items of *run*, and lock all notes until the end of the block.

        The record is on the disk before the block runs. Otherwise, after a power loss, the next worker could
        empty a feed that has new items.

        Yields:
            Whether this run was already recorded for the feed, and whether another run was.
        Raises:
            CrewError: another user could write to the notes, which decide whether feeds are emptied.
            OSError: the record cannot be written.
        """
        self._make()
        notes = self.notes_of(run, target)
        with (self.path / "notes.lock").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            held, older = notes.exists(), self.older_notes(run, target)
            notes.touch(mode=0o600)
            sync_folder(self.path)
            for path in older:
                path.unlink()
            yield held, bool(older)

    def _make(self) -> None:
        make_private(self._home, may_be_link=True)
        make_private(self.path.parent)
        make_private(self.path)

    def all_journals(self) -> list[Path]:
        """Return the journals of all runs, in the order of their names."""
        return sorted(path for path in self.path.glob("*") if path.suffix in (OPEN, DONE))


def _digest(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target)).hexdigest()[:16]


def run_of(path: Path) -> Run | None:
    """Return the run of a file in the folder, or None if its name has no run."""
    with suppress(ValueError):
        epoch, number, _ = path.name.split(".", 2)
        return Run(epoch, int(number))
    return None


def read_json(path: Path) -> Any:
    """Return the content of a small file, or None if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text())
    return None


def write_json(path: Path, value: Any) -> None:
    """Replace a small file; a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    # O_EXCL refuses a link that another user has put there.
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)
