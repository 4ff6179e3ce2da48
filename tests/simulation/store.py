"""The Redis of a schedule: a real server, whose clock is the world's; and the network before it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis
import redis
from redis.exceptions import ConnectionError as Cut
from redis.exceptions import NoScriptError, ResponseError

from simulation.virtual import Process, World

SECONDS, MICROS = "clock:s", "clock:us"
TIMEOUT_S = 5.0
"""How long a client waits for an answer."""
CRAWL = "simulated"
Snapshot = dict[bytes, bytes]


def under_virtual_time(source: str) -> str:
    """Return a script that reads the time from two keys."""
    return source.replace("redis.call('TIME')", f"redis.call('MGET', '{SECONDS}', '{MICROS}')")


def _error(text: str) -> Exception:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)


class Store:
    """A real redis-server, which a schedule has for itself. What it says of its disk is made up."""

    def __init__(self, path: str, world: World) -> None:
        self.redis: Any = redis.Redis(unix_socket_path=path)
        self._world = world
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader(replyError=_error)
        self.clock_offset_s = 0.0
        self.frozen_until = 0.0
        self.full = False
        self.redis.config_set("maxmemory", 0)
        self.redis.flushall()

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Run one command at the world's time; return what redis-py returns, or the error of Redis."""
        if name in ("evalsha", "eval"):
            return self._script(name.upper(), *args)
        if name == "info":
            return self.info()
        if name == "time":
            seconds, fraction = divmod(self._now(), 1)
            return int(seconds), int(fraction * 1_000_000)
        try:
            return getattr(self.redis, name)(*args, **options)
        except redis.RedisError as error:
            return error

    def info(self) -> dict[str, Any]:
        """Return an INFO of a server whose AOF is written each second, with fast disks."""
        return {
            "redis_version": "6.2.14", "run_id": "simulated", "aof_enabled": 1, "aof_pending_bio_fsync": 0,
            "aof_last_write_status": "ok", "connected_slaves": 0,
        }  # fmt: skip

    def snapshot(self) -> Snapshot:
        """Return all keys of the crawl, as `restore` takes them."""
        names = sorted(self.names())
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            pipe.dump(name)
        return dict(zip(names, pipe.execute(), strict=True))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace all keys of the crawl; the scripts are gone, too."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.flushdb()
        pipe.script_flush()
        for name, value in snapshot.items():
            pipe.restore(name, 0, value)
        pipe.execute()

    def names(self) -> set[bytes]:
        """Return the names of all keys but those of the clock."""
        return set(self.redis.keys()) - {SECONDS.encode(), MICROS.encode()}

    def close(self) -> None:
        self._socket.close()
        self.redis.close()

    def _now(self) -> float:
        return self._world.now + self.clock_offset_s

    def _script(self, *command: Any) -> Any:
        seconds, fraction = divmod(self._now(), 1)
        commands: list[tuple[Any, ...]] = [
            ("MSET", SECONDS, int(seconds), MICROS, int(fraction * 1_000_000)),
            command,
        ]
        if self.full:
            commands = [
                commands[0],
                ("CONFIG", "SET", "maxmemory", 1),
                command,
                ("CONFIG", "SET", "maxmemory", 0),
            ]
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        answers: list[Any] = []
        while len(answers) < len(commands):
            if (answer := self._reader.gets()) is not False:
                answers.append(answer)
            else:
                self._reader.feed(self._socket.recv(1 << 16))
        return answers[commands.index(command)]


@dataclass
class Rates:
    """How often a fault strikes a call, each from 0 to 1."""

    lost: float = 0.0
    """The call does not reach Redis."""
    unanswered: float = 0.0
    """It is run, and its answer is lost."""
    late: float = 0.0
    """It is run after its sender has given up, or is dead."""


class Network:
    """Carries calls to the store, and answers back."""

    def __init__(self, world: World, store: Store, rates: Rates) -> None:
        self.world = world
        self.store = store
        self.rates = rates
        self.away_until = 0.0
        self.calls = 0
        self.generation = 0
        """The number of times that all connections were cut."""

    def cut(self, away_s: float = 0.0) -> None:
        """Cut all connections: what was not run yet is never run, what was not answered never answered."""
        self.generation += 1
        self.away_until = max(self.away_until, self.world.now + away_s)

    def fault(self) -> str:
        """Draw what happens to a call; "": nothing."""
        self.calls += 1
        if self.world.now < self.away_until:
            return "lost"
        drawn = self.world.random.random()
        for name in ("lost", "unanswered", "late"):
            drawn -= getattr(self.rates, name)
            if drawn < 0:
                return name
        return ""

    def latency_s(self) -> float:
        return self.world.random.uniform(0.0001, 0.003)


class Client:
    """What a frontier uses of `redis.asyncio.Redis`."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def client(self) -> Client:
        """Return a client with a connection of its own."""
        return self

    async def initialize(self) -> Client:
        return self

    async def aclose(self) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **options: self._call(name, *args, **options)

    async def execute_command(self, *command: Any) -> Any:
        raise ResponseError("unknown command")  # WAIT and WAITAOF: an old Redis

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        network, world, thread = self._network, self._network.world, self._process.main
        answer: asyncio.Future[Any] = self._process.loop.create_future()
        fault, generation = network.fault(), network.generation

        def run() -> None:
            if world.now < network.store.frozen_until:
                world.at(network.store.frozen_until, run)
            elif fault == "late" or network.generation == generation:
                outcome = network.store.call(name, *args, **options)
                if not fault:
                    world.at(world.now + network.latency_s(), lambda: reply(outcome), thread)

        def reply(outcome: Any) -> None:
            if network.generation == generation:
                _settle(answer, outcome)

        arrives_s = world.now + network.latency_s()
        if fault == "late":
            arrives_s += world.random.uniform(0.0, 2 * TIMEOUT_S)
        if fault != "lost":
            world.at(arrives_s, run)
        ends_s = world.random.choice((0.0, 0.01, TIMEOUT_S)) if fault else TIMEOUT_S
        world.at(world.now + ends_s, lambda: _settle(answer, Cut("simulated")), thread)
        return await answer


class BlockingClient:
    """What a heartbeat uses of `redis.Redis`: its calls take no time."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._call(name, *args, **options)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        network = self._network
        fault = network.fault()
        if fault == "lost" or network.world.now < network.store.frozen_until:
            raise Cut("simulated")
        outcome = network.store.call(name, *args, **options)
        if fault:
            raise Cut("simulated")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None: ...


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
