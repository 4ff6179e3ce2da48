"""Moves on disk: the part of an outbox that exceeds its memory limit during an outage."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgpack
from queuelib import FifoDiskQueue

from scrapy_dq.frontier.model import SpillLost
from scrapy_dq.frontier.moves import Move, fields_of, move_of

try:
    import fcntl
except ImportError:  # Windows, which does not remove a folder with open files
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)
PREFIX = "scrapy-dq-outbox-"
LOCK = "lock"
FREE_BYTES = 64 * 1024 * 1024
"""Space to leave free on the disk, because an incomplete write would corrupt the queue."""


class Spill:
    """Chunks of moves in a FIFO queue on disk, in a separate folder, which is created when it is needed.

    No later process reads these moves. If this process is killed, the requests that these moves settle are
    still in flight under the worker's id, and run again. The next process that creates such a folder removes
    the folders of killed processes.

    Args:
        parent: the folder in which to create the queue's folder; created if it does not exist; "": the
            system's folder for temporary files.
    """

    def __init__(self, parent: str = "") -> None:
        self._parent = Path(parent)
        self._files = ExitStack()
        """Closes and removes the files that `_open` has created."""
        self._queue: FifoDiskQueue | None = None
        self._warned = False

    def __len__(self) -> int:
        """Return how many chunks wait."""
        return len(self._queue) if self._queue is not None else 0

    def push(self, moves: Sequence[Move]) -> bool:
        """Store a chunk; return False, with one warning, if it cannot be written."""
        try:
            if self._parent == Path():  # not earlier: a read-only system may have no temporary folder
                self._parent = Path(tempfile.gettempdir())
            self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._parent).free
            if free < FREE_BYTES + 2 * sum(move.size for move in moves):
                raise OSError(f"only {free // 2**20} MiB are free")
            if self._queue is None:
                self._open()
            assert self._queue is not None
            self._queue.push(msgpack.packb([fields_of(move) for move in moves]))
        except Exception as error:  # of the file system, the lock or msgpack; it must not reach the engine
            if self._queue is None:
                self.close()
            if not self._warned:
                self._warned = True
                logger.warning(
                    "Requests that wait for Redis cannot be moved to disk in %s (%s): they stay in memory. "
                    "DQ_DATA_DIR names another folder",
                    self._parent,
                    error,
                )
            return False
        return True

    def pop(self) -> list[Move]:
        """Remove and return the oldest chunk; its puts have no `source`.

        Raises:
            SpillLost: the chunk cannot be read, for any reason. All chunks on disk were deleted.
        """
        assert self._queue is not None
        try:
            moves = [move_of(fields) for fields in msgpack.unpackb(self._queue.pop(), use_list=False)]
        except Exception as error:  # a file is gone or truncated; struct and msgpack raise their own errors
            self.close()
            raise SpillLost(f"{type(error).__name__}: {error}") from error
        if not self._queue:
            self.close()
        return moves

    def close(self) -> None:
        """Remove the folder and its contents."""
        self._queue = None
        with suppress(OSError):
            self._files.close()

    def _open(self) -> None:
        _sweep(self._parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._parent))
        self._files.callback(shutil.rmtree, folder, ignore_errors=True)
        lock = self._files.enter_context((folder / LOCK).open("wb"))
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._queue = FifoDiskQueue(folder / "moves")
        self._files.callback(self._queue.close)
        logger.info("The moves that wait for Redis exceed the memory limit: storing them in %s", folder)


def _sweep(parent: Path) -> None:
    """Remove this user's folders whose process is gone, so that their lock is free."""
    if fcntl is None:
        return
    for path in parent.glob(PREFIX + "*"):
        # Skip a folder without a lock file: its owner may be about to create one.
        with suppress(OSError), (path / LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.lstat().st_uid == os.getuid():  # rmtree follows no symbolic link
                shutil.rmtree(path, ignore_errors=True)
