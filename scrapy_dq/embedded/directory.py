"""The directory of the embedded Redis: who uses it, whether its server is alive, and the path of its socket.

Three lock files decide everything. The kernel releases each when its holder dies, kill -9 included, so that
no decision depends on a pid or on a stale file:

    start.lock   exclusive, while a process joins, starts or stops the server
    users.lock   shared, held by each user as long as it uses the server; without a holder: stop the server
    server.lock  exclusive, inherited by redis-server itself: held as long as it lives

They are taken in this order, users.lock and server.lock only under start.lock (except by `server_lives`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scrapy_dq.embedded.binary import EmbeddedError

try:
    import fcntl
except ImportError:  # Windows: the module can be imported, prepare() says what to do
    fcntl = None  # type: ignore[assignment]

START_LOCK, USERS_LOCK, SERVER_LOCK = "start.lock", "users.lock", "server.lock"
SOCKET, LOG, PID = "redis.sock", "redis.log", "redis.pid"
MAX_SOCKET_PATH_BYTES = 103  # sun_path: 108 bytes on Linux, 104 on macOS, with the final NUL
POLL_S = 0.02
LOG_LINES = 12


class RedisDirectory:
    """One user's view of the directory. Not thread-safe; an OSError means that it cannot be used at all."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._use: int | None = None
        self._use_pid = 0
        self._suffix = secrets.token_hex(4)

    def prepare(self) -> None:
        """Make the directory, for the owner only, if it does not exist; refuse one that others could change.

        Anybody who can create files in it can put the socket of another server there.
        """
        if fcntl is None:
            raise EmbeddedError("The embedded Redis needs a POSIX system. Set REDIS_URL to a running Redis.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        found = self.path.stat()
        if found.st_uid != os.getuid():
            raise EmbeddedError(
                f"{self.path} belongs to another user (uid {found.st_uid}). Set DQ_DATA_DIR to a folder of "
                f"your own, or REDIS_URL to a running Redis."
            )
        if found.st_mode & 0o022:
            raise EmbeddedError(
                f"Other users may write into {self.path}, and so put another server there: chmod 700 it, "
                f"after you have checked what is in it, or set REDIS_URL to a running Redis."
            )

    @contextmanager
    def start_lock(self, deadline: float) -> Iterator[None]:
        """Keep all others from joining, starting and stopping; wait for that until *deadline* (monotonic)."""
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
                # Closing alone is not enough: a child forked meanwhile has a copy of the descriptor.
                fcntl.flock(lock, fcntl.LOCK_UN)

    @property
    def in_use(self) -> bool:
        """Whether this object is a user. In a forked child it is not: only its parent is."""
        return self._use is not None and self._use_pid == os.getpid()

    def hold(self) -> None:
        """Become a user; under start.lock."""
        if self.in_use and self.use_is_current():
            return
        self.drop()
        self._use, self._use_pid = self._open(USERS_LOCK), os.getpid()
        # Only under start.lock is it held exclusively, so there is nothing to wait for.
        fcntl.flock(self._use, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def drop(self) -> None:
        """Stop being a user."""
        use, self._use = self._use, None
        if use is None:
            return
        if self._use_pid == os.getpid():
            self.forget_links(own=True)
            fcntl.flock(use, fcntl.LOCK_UN)
        os.close(use)

    def use_is_current(self) -> bool:
        """Tell whether others see our use: the directory may have been deleted since."""
        if self._use is not None:
            with suppress(OSError):
                return os.path.samestat(os.fstat(self._use), os.stat(self.path / USERS_LOCK))
        return False

    def is_last_user(self) -> bool:
        """Tell whether nobody else uses it; under start.lock, and only to drop the use afterwards.

        Nobody becomes a user without start.lock, so the answer stays true while that is held.
        """
        return self._use is not None and self.use_is_current() and _lock(self._use, exclusive=True)

    @contextmanager
    def server_lock(self) -> Iterator[int | None]:
        """Yield the descriptor of server.lock for a server to inherit, or None while a server lives."""
        with self._opened(SERVER_LOCK) as lock:
            yield lock if _lock(lock, exclusive=True) else None

    def server_lives(self) -> bool:
        """Tell whether a server lives; on another host, too, if the file system carries flock there."""
        # A shared lock, so that two processes that check at once do not mistake each other for the server.
        with self._opened(SERVER_LOCK) as lock:
            return not _lock(lock, exclusive=False)

    def socket(self) -> Path:
        """Return a path to the socket that fits into sun_path, through a symlink of our own if necessary.

        The socket itself always lies in the directory, so no two workers must agree on this path.
        """
        if len(os.fsencode(self.path / SOCKET)) <= MAX_SOCKET_PATH_BYTES:
            return self.path / SOCKET
        target = os.path.realpath(self.path)
        for link in self._links(target):
            if len(os.fsencode(link / SOCKET)) > MAX_SOCKET_PATH_BYTES or not os.access(link.parent, os.W_OK):
                continue
            with suppress(FileExistsError):
                link.symlink_to(target)
            # In a folder that all can write, another user may have made it first.
            if _is_our_link(link, target):
                return link / SOCKET
        raise EmbeddedError(
            f"The path of {self.path} is too long for a unix socket, and neither the temporary folder nor "
            "/tmp can hold a short symlink to it. Move the project, set TMPDIR, or set REDIS_URL."
        )

    def forget_links(self, *, own: bool = False) -> None:
        """Remove the symlinks that `socket` made, also those that other processes use; or only our *own*."""
        target = os.path.realpath(self.path)
        for link in self._links(target):
            if _is_our_link(link, target) and (link.name.endswith(self._suffix) or not own):
                link.unlink(missing_ok=True)

    def _links(self, target: str) -> Iterator[Path]:
        name = f"scrapy-dq-{os.getuid()}-{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}"
        for folder in (tempfile.gettempdir(), "/tmp"):
            yield Path(folder, name)
            # Others can take the first name, which is known, but not this one.
            yield Path(folder, f"{name}-{self._suffix}")

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


def _is_our_link(link: Path, target: str) -> bool:
    return link.is_symlink() and link.lstat().st_uid == os.getuid() and os.readlink(link) == target


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Take or change a lock without waiting; False if another process holds it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
