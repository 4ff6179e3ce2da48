"""A file that has only whole records, even after disk errors. Data is on the disk a second after a write."""

from __future__ import annotations

import errno
import io
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)
SYNC_EVERY_S = 1.0


class Whole(io.FileIO):
    """A file that a failed write leaves unchanged. A pipe may keep a part, because it cannot be truncated.

    A thread syncs the file to the disk, at most once a second, and at its end. On the event loop, an fsync
    would block the crawl for as long as the disk takes.
    """

    failed: Callable[[], None] | None = None
    """Called after a failed write."""
    _sync_now: threading.Event | None = None
    """Wakes the thread that waits to sync. None means that all data is synced, or is being synced."""

    def write(self, data: Any) -> int:
        """Write all of *data*, or nothing and raise.

        A full disk may accept a part of *data* without an error. Once the disk has room again, the next
        record would continue the incomplete one, and readers could not tell where later records begin.
        """
        if not self.seekable():
            return super().write(data)
        end, done = self.seek(0, io.SEEK_END), 0
        whole = memoryview(data).cast("B")
        try:
            while done < len(whole):
                done += super().write(whole[done:])
        except OSError:
            if self.seek(0, io.SEEK_END) == end + done:  # otherwise another process has also written to it
                self.truncate(end)
            if self.failed is not None:
                self.failed()
            raise
        if self._sync_now is None:
            self._sync_now = threading.Event()
            # The thread has its own descriptor: the file may be closed, and its number reused, while the
            # thread waits. It is not a daemon thread, so the process waits for its end.
            arguments = (os.dup(self.fileno()), self._sync_now)
            threading.Thread(target=self._sync, args=arguments, name="scrapy-dq-feed").start()
        return done

    def close(self) -> None:
        """Close the file immediately. All written data is on the disk before the process ends."""
        if self._sync_now is not None:
            self._sync_now.set()
        super().close()

    def _sync(self, descriptor: int, now: threading.Event) -> None:
        now.wait(SYNC_EVERY_S)
        self._sync_now = None  # before the fsync, because later writes need another thread
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file is on no disk, such as /dev/null
                logger.warning("%s is not synced to the disk: %s", self.name, error)
        finally:
            os.close(descriptor)
