"""The folder beside a feed in which each worker of a crew writes a part of it.

    crew.lock     exclusive: held by the one `scrapy dq crawl` that writes this feed
    workers.lock  shared: held by each worker that may still write; joining waits for it
    *.part        what one worker process has written, in one run
    joined        the new feed, while it is built
    joined.json   the marker that `joined` replaces the feed: which parts it holds, up to which run

Which run a feed holds is recorded in a folder of the project, in one file per feed: a finished run may be
reopened (`scrapy dq retry`), and until then nothing is left beside the feed. The kernel releases both locks
when their holders die, kill -9 included.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.private_folder import make_private

try:
    import fcntl
except ImportError:  # Windows: feeds.py can be imported, `scrapy dq crawl` says what to do
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".parts"
POLL_S = 0.05
CHANCES = 100


class Run(NamedTuple):
    """One life of a crawl."""

    epoch: str
    number: int


def part_path(folder: Path, epoch: str, run: int, worker: int) -> Path:
    """Return a path that no other process uses; parts sort by run, then by the time they were begun."""
    return folder / f"{epoch}.{run:09d}.{time.time_ns():020d}.{worker:03d}-{os.getpid()}.part"


def run_of(part: Path) -> Run:
    """Return the run in which a part was written; for any other name, a run that does not exist."""
    with suppress(ValueError):
        epoch, run, _ = part.name.split(".", 2)
        return Run(epoch, int(run))
    return Run("", -1)


class PartsFolder:
    """The folder of one feed, for the crew that holds its lock.

    Args:
        notes: the folder that records what each feed holds.
    """

    def __init__(self, target: Path, notes: Path) -> None:
        self.target = Path(os.path.realpath(target))
        self.path = self.target.with_name(self.target.name + SUFFIX)
        self.joined = self.path / "joined"
        self._marker = self.path / "joined.json"
        name = hashlib.sha256(os.fsencode(self.target)).hexdigest()[:32]
        self._note = notes / f"{name}.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and hold it; at the end, remove it if nothing is left in it.

        Raises:
            CrewError: another crew writes this feed, or a folder cannot be made.
        """
        lock = self._take_lock()
        try:
            try:
                # The parent folder is the embedded Redis's: private to its owner, whoever creates it.
                self._note.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._note.parent.mkdir(mode=0o700, exist_ok=True)
                self._recover()
            except OSError as error:
                raise CrewError(f"what {self.target} holds cannot be recorded: {error}") from error
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
                raise CrewError(f"{self.path} cannot be used: {error}") from error
            if not _flock(lock):
                os.close(lock)
                raise CrewError(f"another `scrapy dq crawl` writes {self.target}")
            with suppress(OSError):
                if os.path.samestat(os.fstat(lock), os.stat(self.path / "crew.lock")):
                    return lock
            os.close(lock)
        raise CrewError(f"{self.path} cannot be used: it is removed repeatedly")

    @property
    def holds(self) -> Run | None:
        """The run that was last joined into the feed, finished or not."""
        found = _read(self._note)
        with suppress(TypeError, KeyError):
            return Run(*found["run"])
        return None

    def has_part_of(self, run: Run) -> bool:
        """Tell whether anything is left that was written in *run*."""
        return any(run_of(part) == run for part in self.path.glob("*.part"))

    def finished_parts(self, waiting: Callable[[], None]) -> list[Path]:
        """Return all parts, in order, once no worker writes to them; *waiting* is called meanwhile.

        After a kill of their `scrapy dq crawl`, workers continue for a moment. Removing a part that a worker
        still writes would lose items.
        """
        lock = _open(self.path / "workers.lock")
        try:
            while not _flock(lock):
                waiting()
                time.sleep(POLL_S)
            # Under the lock: a part that is begun after this is not in the list.
            return sorted(self.path.glob("*.part"))
        finally:
            os.close(lock)

    def replace(self, parts: list[Path], run: Run) -> None:
        """Replace the feed with `joined`, record its *run*, and remove the *parts* that it holds.

        CRASH before the marker: joined again, from the same parts. Between marker and rename: the same.
        After the rename: the marker exists and `joined` does not: the run is recorded and the parts are
        removed, not joined again.
        """
        with suppress(OSError):
            before = self.target.stat()
            # Never a program of another user that runs as this one.
            if before.st_uid == os.geteuid():
                self.joined.chmod(before.st_mode & 0o666)
        _write(self._marker, {"parts": [part.name for part in parts], "run": run})
        os.replace(self.joined, self.target)
        _sync(self.path)
        _sync(self.target.parent)
        self._settle()

    def drop(self, parts: list[Path]) -> None:
        """Remove *parts* that have no items, and `joined`; the feed stays."""
        for left in (*parts, self.joined):
            left.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Finish, or undo, what a killed crew had begun."""
        if self._marker.exists() and not self.joined.exists():
            self._settle()
        for left in (self._marker, self.joined):
            left.unlink(missing_ok=True)

    def _settle(self) -> None:
        marker = _read(self._marker) or {}
        if marker.get("run"):
            _write(self._note, {"target": str(self.target), "run": marker["run"]})
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


def lock_alone(descriptor: int, longest_s: float) -> None:
    """Wait until no other process locks a file, and lock it until it is closed; not on Windows.

    Raises:
        TimeoutError: another process has locked it for longer than *longest_s*.
    """
    deadline = time.monotonic() + longest_s
    while fcntl is not None and not _flock(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has locked it for {longest_s:g} s")
        time.sleep(POLL_S)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _flock(descriptor: int) -> bool:
    """Take an exclusive lock without waiting; False if another process has one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def _write(path: Path, value: Any) -> None:
    """Replace a small file; a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
