"""A master with replicas, and the sentinels that watch it, all in real processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.exceptions import RedisError

from support.redis_server import Kind, RedisServer, find_binary, found_kinds
from support.waiting import free_port, wait_until

SERVICE = "crawls"
SENTINEL, REPLICA, BESIDE = "sentinel", "replica", "beside"
RIGHTS = {
    SENTINEL: (
        "allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish "
        "+info +client|setname +client|kill +script|kill"
    ),
    REPLICA: "+psync +replconf +ping",
}
"""The rights of each user in docs/deploying.md."""
_USERS = {**RIGHTS, BESIDE: RIGHTS[SENTINEL]}
"""The first sentinel has its own user, so that `split` can treat it differently from the others."""


class Sentinels:
    """Redis servers, one of them the master, and three sentinels.

    Args:
        down_after_ms: the time after which a sentinel considers a silent master dead.
        password: the password of the servers. *sentinel_password* is the password of the sentinels.
    """

    def __init__(
        self,
        *,
        servers: int = 2,
        kind: Kind | None = None,
        down_after_ms: int = 500,
        password: str | None = None,
        sentinel_password: str | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._password, self._sentinel_password = password, sentinel_password
        # Sentinels and replicas have their own users, so that a server can be cut off from them.
        users = [
            word
            for name, rights in _USERS.items()
            for word in ("--user", name, "on", ">secret", *rights.split())
        ]
        login = [*users, "--masteruser", REPLICA, "--masterauth", "secret"]
        self.servers = [
            self._stack.enter_context(RedisServer(kind, appendonly=True, password=password, args=login))
            for _ in range(servers)
        ]
        for replica in self.servers[1:]:
            with replica.client() as client:
                client.replicaof("127.0.0.1", str(self.servers[0].port))
        self._home = Path(tempfile.mkdtemp(prefix="dq-sentinels-"))
        self._stack.callback(shutil.rmtree, self._home, ignore_errors=True)
        binary = find_binary(kind or found_kinds()[0])
        self.ports = [free_port() for _ in range(3)]
        for port in self.ports:
            lines = [
                f"port {port}",
                "bind 127.0.0.1",
                f'logfile "{self._home}/{port}.log"',
                f'dir "{self._home}"',
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 2",
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
                f"sentinel failover-timeout {SERVICE} 3000",
                f"sentinel auth-user {SERVICE} {BESIDE if port == self.ports[0] else SENTINEL}",
                f"sentinel auth-pass {SERVICE} secret",
            ]  # fmt: skip
            if sentinel_password is not None:
                lines.append(f"requirepass {sentinel_password}")
            (self._home / f"{port}.conf").write_text("\n".join(lines))
            process = subprocess.Popen(
                [str(binary), str(self._home / f"{port}.conf"), "--sentinel"], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._stack.callback(_end, process)
        wait_until(self._ready, "the sentinels know the replicas and one another", 30)

    @property
    def url(self) -> str:
        """The URL for REDIS_URL."""
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        query = "" if self._sentinel_password is None else f"?sentinel_password={self._sentinel_password}"
        return f"redis+sentinel://{login}{hosts}/{SERVICE}/0{query}"

    def sentinel(self, port: int) -> Any:
        """Return a client of one sentinel."""
        return redis.Redis(
            port=port, password=self._sentinel_password, socket_timeout=5, decode_responses=True
        )

    @property
    def master(self) -> RedisServer:
        """The server that most sentinels consider the master."""
        named = []
        for port in self.ports:
            with self.sentinel(port) as client:
                named.append(client.sentinel_master(SERVICE)["port"])
        most = max(named, key=named.count)
        return next(server for server in self.servers if server.port == most)

    def separate(self, server: RedisServer) -> None:
        """Cut *server* off from the sentinels and its replicas. Other clients still reach it."""
        self._shut_out(server, SENTINEL, REPLICA, BESIDE)

    def split(self) -> None:
        """Separate the master and the first sentinel from the other processes. Clients reach both sides."""
        old = self.master
        with self.sentinel(self.ports[0]) as client:
            client.execute_command("ACL", "SETUSER", "default", "-publish")  # no other sentinel reaches it
        for server in self.servers:
            self._shut_out(server, *((SENTINEL, REPLICA) if server is old else (BESIDE,)))

    def heal(self, old: RedisServer) -> None:
        """End `split` and make *old* a replica, as the sentinels would do about ten seconds later."""
        new = self.master
        with self.sentinel(self.ports[0]) as client:
            client.execute_command("ACL", "SETUSER", "default", "+publish")
        for server in self.servers:
            with server.client() as client:
                for name in _USERS:
                    client.execute_command("ACL", "SETUSER", name, "on")
        with old.client() as client:
            client.replicaof("127.0.0.1", str(new.port))
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")

    @staticmethod
    def _shut_out(server: RedisServer, *users: str) -> None:
        with server.client() as client:
            for name in users:
                client.execute_command("ACL", "SETUSER", name, "off")
                client.execute_command("CLIENT", "KILL", "USER", name)

    def wait_for_another_master(self, old: RedisServer) -> RedisServer:
        """Wait until a server other than *old* is the master."""
        wait_until(lambda: self.master is not old, "a replica is promoted", 30)
        return self.master

    def close(self) -> None:
        """End all processes and remove their folders."""
        self._stack.close()

    def __enter__(self) -> Sentinels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> bool:
        try:
            for port in self.ports:
                with self.sentinel(port) as client:
                    state = client.sentinel_master(SERVICE)
                if state["num-slaves"] < len(self.servers) - 1 or state["num-other-sentinels"] < 2:
                    return False
        except RedisError:
            return False
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)
