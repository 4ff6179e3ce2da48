"""The directory of the embedded Redis: its users, whether its server is alive, and the path of its socket.

Three lock files decide everything. The kernel releases a lock when its holder dies, also after kill -9. So no
decision depends on a pid or on a stale file:

    start.lock   exclusive; a process holds it while it joins, starts or stops the server
    users.lock   shared; each user of the server holds it, and the last user stops the server
    server.lock  exclusive; redis-server inherits it, and holds it as long as it lives

Processes take the locks in this order. Except in `server_lives`, they take users.lock and server.lock only
under start.lock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scrapy_dq.embedded.binary import EmbeddedError

try:
    import fcntl
except ImportError:  # Windows can import this module; prepare() raises an error with the remedy
    fcntl = None  # type: ignore[assignment]

START_LOCK, USERS_LOCK, SERVER_LOCK = "start.lock", "users.lock", "server.lock"
SOCKET, LOG, PID = "redis.sock", "redis.log", "redis.pid"
MAX_SOCKET_PATH_BYTES = 103  # sun_path: 108 bytes on Linux, 104 on macOS, with the final NUL
POLL_S = 0.02
LOG_LINES = 12


class RedisDirectory:
    """The directory, as one user of the server sees it. Not thread-safe.

    If a method raises an OSError, the directory is unusable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._use: int | None = None
        self._use_pid = 0
        self._folder: int | None = None
        """A descriptor of the directory, which leads to the socket if the path is long."""

    def prepare(self) -> None:
        """Make the directory, for the owner only, if it does not exist.

        A directory that other users could change is refused, because they could put the socket of another
        server there.
        """
        if fcntl is None:
            raise EmbeddedError("The embedded Redis needs a POSIX system. Set REDIS_URL to a running Redis.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        found = self.path.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise EmbeddedError(
                f"Other users may write into {self.path} (its owner is uid {found.st_uid}), and so put "
                f"another server there. Check what is in it, and chmod 700 it; or set DQ_DATA_DIR to another "
                f"folder, or REDIS_URL to a running Redis."
            )

    @contextmanager
    def start_lock(self, deadline: float) -> Iterator[None]:
        """Keep other processes from joining, starting and stopping the server.

        Wait for the lock until *deadline* (monotonic).
        """
        with self._opened(START_LOCK) as lock:
            while not _lock(lock, exclusive=True):
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"{self.path / START_LOCK} is still held by a worker that starts or stops the "
                        "embedded Redis. Look for one that hangs or is suspended, end it, and try again."
                    )
                time.sleep(POLL_S)
            try:
                yield
            finally:
                # Closing alone is not enough, because a child that was forked inside the block has a copy.
                fcntl.flock(lock, fcntl.LOCK_UN)

    @property
    def in_use(self) -> bool:
        """Whether this object is a user. In a forked child it is not, because the parent stays the user."""
        return self._use is not None and self._use_pid == os.getpid()

    def hold(self) -> None:
        """Become a user. Call it under start.lock."""
        if self.in_use and self.use_is_current():
            return
        self.drop()
        self._use, self._use_pid = self._open(USERS_LOCK), os.getpid()
        # Other processes lock the file exclusively only under start.lock, so there is nothing to wait for.
        fcntl.flock(self._use, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def drop(self) -> None:
        """Stop being a user."""
        use, self._use = self._use, None
        if use is None:
            return
        if self._use_pid == os.getpid():
            fcntl.flock(use, fcntl.LOCK_UN)
        os.close(use)
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)

    def use_is_current(self) -> bool:
        """Tell whether other processes see our use. They do not if the directory was deleted since `hold`."""
        if self._use is not None:
            with suppress(OSError):
                return os.path.samestat(os.fstat(self._use), os.stat(self.path / USERS_LOCK))
        return False

    def is_last_user(self) -> bool:
        """Tell whether the server has no other user. Call it under start.lock, and then call `drop`.

        No process becomes a user without start.lock, so the answer stays true as long as the caller holds it.
        """
        return self._use is not None and self.use_is_current() and _lock(self._use, exclusive=True)

    @contextmanager
    def server_lock(self) -> Iterator[int | None]:
        """Yield the descriptor of server.lock for a server to inherit, or None while a server lives."""
        with self._opened(SERVER_LOCK) as lock:
            yield lock if _lock(lock, exclusive=True) else None

    def server_lives(self) -> bool:
        """Tell whether a server lives, also on another host if the file system carries flock there."""
        # The lock is shared, so that two processes that check at the same time do not mistake each other for
        # the server.
        with self._opened(SERVER_LOCK) as lock:
            return not _lock(lock, exclusive=False)

    def socket(self) -> Path:
        """Return a path to the socket that fits into sun_path. A short form works only in this process."""
        path = self.path / SOCKET
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return path
        if sys.platform != "linux":
            raise EmbeddedError(
                f"The path of {path} is too long for a unix socket. Set DQ_DATA_DIR to a folder with a "
                f"shorter path, or REDIS_URL to a running Redis."
            )
        if self._folder is None:
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return Path(f"/proc/self/fd/{self._folder}", SOCKET)

    def open_log(self) -> int:
        return self._open(LOG, os.O_WRONLY | os.O_APPEND)

    def log_end(self, offset: int) -> str:
        """Return the last lines of the server's log after byte *offset*."""
        lines: list[str] = []
        with suppress(OSError), (self.path / LOG).open("rb") as log:
            log.seek(max(offset, os.fstat(log.fileno()).st_size - 10_000))
            lines = log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(lines)

    def _open(self, name: str, mode: int = os.O_RDWR) -> int:
        return os.open(self.path / name, mode | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        descriptor = self._open(name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Take or change a lock without waiting; return False if another process holds it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
