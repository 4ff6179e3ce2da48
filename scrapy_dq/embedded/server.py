"""The embedded Redis: one redis-server in one directory, shared by all workers of a project on this machine.

The server is a daemon in its own session. It works in that directory and names files relative to it, so no
path is too long, and no character in a path needs quoting. Only locks show which processes use the server and
whether it is alive (`directory.py`). `binary.py` decides which binary may be started.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry

from scrapy_dq.embedded.binary import EmbeddedError, Version, find_binary, record_version
from scrapy_dq.embedded.directory import LOG, PID, POLL_S, SOCKET, RedisDirectory

logger = logging.getLogger(__name__)

# Redis 6.2 supports all of these. `dir` is not needed, because the server starts in that directory.
OPTIONS = (
    *("--daemonize", "yes", "--pidfile", PID, "--logfile", LOG, "--loglevel", "notice"),
    *("--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "700"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"),
)
COMPRESSION = ("--list-compress-depth", "1")
STOP_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 2.0


class EmbeddedRedis:
    """The redis-server that all workers of one project share on this machine.

    Every method blocks: call it from a thread. Threads may share the object.

    Args:
        directory: where the server's files are; made with mode 0700 if it does not exist.
        start_timeout_s: seconds to wait for an answer. The time in which the server loads its AOF does not
            count.

    Attributes:
        pid: the server's pid, as it reports it; None before the first `acquire`.
        version: the server's version, as in "Redis 6.2.14"; "" before the first `acquire`.
    """

    def __init__(self, directory: Path, *, start_timeout_s: float = 20.0) -> None:
        self.pid: int | None = None
        self.version = ""
        self._directory = RedisDirectory(directory)
        self._start_timeout_s = start_timeout_s
        self._socket = self._directory.path / SOCKET
        self._log_offset = 0
        self._mutex = threading.Lock()
        # redis-py logs each PING to a server that does not listen yet, at DEBUG: Scrapy's default level.
        logging.getLogger("redis.client").setLevel(logging.INFO)

    def acquire(self) -> Path:
        """Become a user, start the server if none lives, and return the path of its unix socket.

        Raises:
            EmbeddedError: the server is not available. This object is a user only if it was one before.
        """
        with self._mutex:
            was_user = self._directory.in_use
            try:
                return self._join_or_start()
            except BaseException:
                if not was_user:
                    self._give_up_use()
                raise

    def ensure(self) -> Path:
        """Start the server again if it is gone. Only a user may call this.

        Raises:
            EmbeddedError: the server is not available. This object stays a user and may try again.
        """
        with self._mutex:
            if not self._directory.in_use:
                raise EmbeddedError(f"{self._directory.path}: call acquire() before ensure().")
            return self._join_or_start()

    def release(self) -> None:
        """Stop using the server; the last user stops it. Errors are logged, never raised."""
        with self._mutex:
            self._give_up_use()

    def _join_or_start(self) -> Path:
        try:
            while True:
                self._directory.prepare()
                with self._directory.start_lock(time.monotonic() + self._start_timeout_s):
                    self._directory.hold()
                    self._socket = self._directory.socket()
                    with self._directory.server_lock() as lock:
                        started = lock is not None
                        if lock is not None:
                            self._launch(lock)
                # This needs no start.lock, because our use keeps the server running. Other processes can join
                # while the server loads its AOF.
                if self._await_ready():
                    break
                if started:
                    raise self._failure("ended as it started, or loaded its AOF")
            self._note(started)
        except OSError as error:
            raise EmbeddedError(
                f"The embedded Redis needs the folder {self._directory.path}: {error}. Set DQ_DATA_DIR to a "
                f"folder that this user can write to, on a local file system with flock and unix sockets; or "
                f"set REDIS_URL to a running Redis."
            ) from error
        except RedisError as error:
            raise self._failure(f"does not answer ({error})") from error
        return self._socket

    def _give_up_use(self) -> None:
        try:
            if not self._directory.in_use:
                return
            with self._directory.start_lock(time.monotonic() + STOP_TIMEOUT_S):
                try:
                    if self._directory.is_last_user():
                        self._stop()
                finally:
                    # This happens under start.lock, because is_last_user() may have made the lock exclusive.
                    self._directory.drop()
        except (EmbeddedError, OSError) as error:
            logger.warning("Embedded Redis in %s was not stopped: %s", self._directory.path, error)
        finally:
            self._directory.drop()

    def _launch(self, server_lock: int) -> None:
        """Start the daemon, which keeps *server_lock* as long as it lives.

        CRASH of this process, at any line: the next user joins the server if it lives, or starts a server.
        """
        binary, version = find_binary(self._directory.path)
        (self._directory.path / PID).unlink(missing_ok=True)  # another process may have that pid now
        log = self._directory.open_log()
        try:
            self._log_offset = os.fstat(log).st_size
            launcher = subprocess.Popen(
                [binary, *OPTIONS, *COMPRESSION * version.compresses],
                cwd=self._directory.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(server_lock,),  # the server does not inherit start.lock and users.lock
                start_new_session=True,
                umask=0o077,
            )
        finally:
            os.close(log)
        try:
            # The launcher forks the daemon and ends. The daemon is not our child, so it leaves no zombie.
            status = launcher.wait(self._start_timeout_s)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not become a daemon ({binary})") from None
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)  # also kills the children of a wrapper script
                launcher.wait()
        if status != 0:
            raise self._failure(f"did not start ({binary}, exit status {status})")

    def _await_ready(self) -> bool:
        """Wait until the server answers; return False if it has ended.

        While the server reports that it loads its AOF, the time limit does not run.
        """
        logged = False
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            try:
                with self._client() as client:
                    client.ping()
                return True
            except BusyLoadingError:  # a ConnectionError in redis-py, so it comes first
                deadline = time.monotonic() + self._start_timeout_s
                if not logged:
                    logger.info("Embedded Redis in %s: loading the stored crawls", self._directory.path)
                    logged = True
            except (ConnectionError, TimeoutError) as error:
                if not self._directory.server_lives():
                    return False
                if time.monotonic() > deadline:
                    # The server still runs, so it is not replaced: two servers would corrupt one AOF.
                    raise self._failure(
                        f"lives, but gave no answer for {self._start_timeout_s:g} s ({error}). "
                        f"{self._directory.path / PID} names its pid"
                    ) from error
            except ResponseError:
                return True  # the server answers, with MISCONF or BUSY; the frontier handles such errors
            time.sleep(POLL_S)

    def _note(self, started: bool) -> None:
        """Record the version that serves the directory; log the server that is used from now on."""
        try:
            with self._client() as client:
                info = client.info("server")
        except ResponseError:
            return  # BUSY: a script runs, so the server works. The next user records its version.
        name = "valkey" if "valkey_version" in info else "redis"
        version = Version.parse(f"{name} {info[name + '_version']}")
        if version is not None:
            record_version(self._directory.path, version)
        if (self.pid, self.version) != (info["process_id"], str(version)):
            self.pid, self.version = info["process_id"], str(version)
            verb = "started" if started else "joined"
            logger.info("Embedded Redis: %s %s, pid %s, at %s", verb, version, self.pid, self._socket)

    def _stop(self) -> None:
        """End the server and wait for its end. Call it under start.lock, as its last user."""
        if not self._directory.server_lives():
            return
        server = f"{self.version or 'a server'}, pid {self.pid}, in {self._directory.path}"
        deadline, problem = time.monotonic() + STOP_TIMEOUT_S, ""
        while self._directory.server_lives():
            if time.monotonic() > deadline:
                logger.warning("Embedded Redis: %s, does not stop (%s); left running", server, problem)
                return
            try:
                with self._client() as client:
                    # NOSAVE skips only the RDB: Redis writes and fsyncs the AOF. It also ends a stuck script.
                    client.shutdown(nosave=True)
            except RedisError as error:
                problem = str(error)
            time.sleep(POLL_S)  # and repeat: a server that is still starting does not listen yet
        logger.info("Embedded Redis: stopped %s", server)

    def _client(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self._socket),
            protocol=2,
            socket_timeout=REPLY_TIMEOUT_S,
            socket_connect_timeout=REPLY_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    def _failure(self, fault: str) -> EmbeddedError:
        path = self._directory.path
        return EmbeddedError(
            f"The embedded Redis in {path} {fault}. Fix what its log reports, or set REDIS_URL to a running "
            f"Redis. The end of {path / LOG}:\n" + (self._directory.log_end(self._log_offset) or "(nothing)")
        )
