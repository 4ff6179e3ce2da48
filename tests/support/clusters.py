"""A Redis Cluster of real processes: masters, each with a replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from support.redis_server import Kind, RedisServer
from support.waiting import wait_until


class Cluster:
    """Masters with equal shares of the slots, and a replica of each.

    Args:
        timeout_ms: time after which the other nodes consider a silent node dead.
        password: password of all nodes.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        kind: Kind | None = None,
        timeout_ms: int = 1000,
        password: str | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._password = password
        login = [] if password is None else ["--masterauth", password]
        args = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(timeout_ms), *login]
        args += ["--cluster-replica-validity-factor", "0"]
        self.servers = [
            self._stack.enter_context(RedisServer(kind, appendonly=True, password=password, args=args))
            for _ in range(2 * masters)
        ]
        self._clients = {
            server.port: self._stack.enter_context(server.client(socket_timeout=5)) for server in self.servers
        }
        try:
            self._form(masters)
        except BaseException:
            self.close()
            raise

    def _form(self, masters: int) -> None:
        first, *others = self.servers
        for other in others:
            self.run(other, "CLUSTER", "MEET", "127.0.0.1", other.port if other is first else first.port)
        share = -(-REDIS_CLUSTER_HASH_SLOTS // masters)
        for number, server in enumerate(self.servers[:masters]):
            begin = number * share
            slots = range(begin, min(begin + share, REDIS_CLUSTER_HASH_SLOTS))
            self.run(server, "CLUSTER", "ADDSLOTS", *slots)
        wait_until(
            lambda: all(len(self.nodes(server)) == 2 * masters for server in self.servers), "all have met", 30
        )
        for master, replica in zip(self.servers[:masters], self.servers[masters:], strict=True):
            self.run(replica, "CLUSTER", "REPLICATE", self.id_of(master))
        wait_until(self._ready, "the cluster is up, and each master has its replica", 60)

    def _ready(self) -> bool:
        states = [client.cluster("INFO") for client in self._clients.values()]
        linked = [client.info("replication") for client in self._clients.values()]
        masters = sum(each["role"] == "master" and each["connected_slaves"] == 1 for each in linked)
        return all(each["cluster_state"] == "ok" for each in states) and masters == len(self.servers) // 2

    @property
    def url(self) -> str:
        """The URL for REDIS_URL, with all nodes, replicas first."""
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        return f"redis+cluster://{login}" + ",".join(f"127.0.0.1:{each.port}" for each in self.servers[::-1])

    def run(self, server: RedisServer, *command: Any) -> Any:
        """Run a command on one node."""
        return self._clients[server.port].execute_command(*command)

    def id_of(self, server: RedisServer) -> str:
        """Return the name of a node."""
        return str(self.run(server, "CLUSTER", "MYID").decode())

    def nodes(self, server: RedisServer) -> dict[str, Any]:
        """Return one node's view of all nodes, by address."""
        found: dict[str, Any] = self._clients[server.port].cluster("NODES")
        return {name: each for name, each in found.items() if "handshake" not in each["flags"]}

    def owner(self, key: str) -> RedisServer:
        """Return the master of the slot of *key*, according to most nodes."""
        slot, named = key_slot(key.encode()), []
        for server in self.servers:
            try:
                for begin, end, master, *_ in self.run(server, "CLUSTER", "SLOTS"):
                    named += [master[1]] if begin <= slot <= end else []
            except (redis.RedisError, OSError):
                continue  # the node was killed
        most = max(named, key=named.count)
        return next(server for server in self.servers if server.port == most)

    def migrate(self, key: str, target: RedisServer, *, pause: Callable[[], object] = lambda: None) -> None:
        """Move the slot of *key* to another master, key by key, as redis-cli does."""
        source, slot = self.owner(key), key_slot(key.encode())
        self.run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        self._move_keys(slot, source, target, pause)
        for server in (target, source, *self.servers):
            if "slave" not in self.nodes(server)[f"127.0.0.1:{server.port}"]["flags"]:
                self.run(server, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move_slots(self, *, steps: int = 16) -> None:
        """Move every slot from its master to the next master. At any time, each master has some slots."""
        masters = [each for each in self.servers if self.run(each, "ROLE")[0] == b"master"]
        owned: dict[int, list[int]] = {}
        for begin, end, (_, port, *_), *_ in self.run(masters[0], "CLUSTER", "SLOTS"):
            owned.setdefault(port, []).extend(range(begin, end + 1))
        for step in range(steps):
            for source, target in zip(masters, masters[1:] + masters[:1], strict=True):
                self._move(owned[source.port][step::steps], source, target, masters)

    def _move(
        self, slots: Sequence[int], source: RedisServer, target: RedisServer, masters: Sequence[RedisServer]
    ) -> None:
        here, there = self._clients[source.port], self._clients[target.port]
        _each(there, [("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source)) for slot in slots])
        _each(here, [("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target)) for slot in slots])
        counts = _each(here, [("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in slots])
        for slot in (slot for slot, count in zip(slots, counts, strict=True) if count):
            self._move_keys(slot, source, target)
        for server in (target, source, *masters):
            owner = self.id_of(target)
            _each(self._clients[server.port], [("CLUSTER", "SETSLOT", slot, "NODE", owner) for slot in slots])

    def _move_keys(
        self, slot: int, source: RedisServer, target: RedisServer, pause: Callable[[], object] = lambda: None
    ) -> None:
        login = [] if self._password is None else ["AUTH", self._password]
        while keys := self.run(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            pause()
            self.run(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *login, "KEYS", *keys)

    def close(self) -> None:
        """End all processes and remove their folders."""
        self._stack.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _each(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run commands on a node in one round trip."""
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute()
