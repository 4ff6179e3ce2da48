"""The Redis of a schedule: a real server in virtual time."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from hashlib import sha1
from typing import Any

import hiredis
import redis
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from scrapy_dq.frontier import frontier, scripts
from simulation.virtual import World

SECONDS, MICROS = "clock:s", "clock:us"
HELD = "in_flight_key(worker_id)"
CHANCE = {
    "redis.call('TIME')": f"redis.call('MGET', '{SECONDS}', '{MICROS}')",
    "redis.call('SMEMBERS', ": "in_order('SMEMBERS', ",
    f"redis.call('HRANDFIELD', {HELD}, limit)": f"{{ unpack(in_order('HKEYS', {HELD}), 1, limit) }}",
    "redis.pcall('INFO', 'memory')": "''",
}
"""Parts of the scripts' text that depend on the moment or the Redis process, with fixed replacements."""
IN_ORDER = "local function in_order(...) local all = redis.call(...) table.sort(all) return all end\n"
CRAWL = "simulated"
Snapshot = dict[bytes, bytes]
_SHARD = re.compile(rb"/(\d+)}:")
_names: dict[str, str] = {}
_sources: dict[str, str] = {}
_originals, _libraries = scripts.source, scripts.library
_scripts: dict[str, str] = {}
"""By name of a function: the digest of the equivalent script."""


@cache
def _timed_source(transition: str) -> str:
    text = _certain(IN_ORDER + _originals(transition))
    sha = digest(text)
    # A plan that counts heartbeats also counts heartbeats with a report.
    _names[sha], _sources[sha] = "beat" if transition == "report" else transition, text
    return text


@cache
def _timed_library(transition: str) -> tuple[str, str]:
    name, text = _libraries(transition)
    shebang, _, rest = _certain(text).partition("\n")
    _names[name], _sources[name] = transition, f"{shebang}\n{IN_ORDER}{rest}"
    _scripts[name] = digest(_timed_source(transition))
    return name, _sources[name]


def _certain(text: str) -> str:
    for drawn, certain in CHANCE.items():
        text = text.replace(drawn, certain)
    return text


def install() -> None:
    """Remove chance from the scripts, and make each script once instead of once per worker."""
    scripts.source, scripts.library = _timed_source, _timed_library  # type: ignore[assignment]
    frontier.Script = cache(scripts.Script)  # type: ignore[attr-defined, misc, assignment]
    function = cache(scripts.Function)
    # Each worker needs a copy, because it stores whether Redis refuses functions.
    frontier.Function = lambda *of: copy(function(*of))  # type: ignore[attr-defined, misc, assignment]


@cache
def digest(source: str) -> str:
    """Return the digest that identifies a script in Redis."""
    return sha1(source.encode()).hexdigest()


def transition_of(name: str, args: tuple[Any, ...]) -> str:
    """Return the name of the script that a command runs, or the command's own name."""
    if name in ("evalsha", "fcall"):
        return _names[args[0]]
    return _names[digest(args[0])] if name == "eval" else name


def shard_called(name: str, args: tuple[Any, ...]) -> int:
    """Return the shard of a command."""
    meta = args[2] if name in ("eval", "evalsha", "fcall") else b""
    return shard_in(meta if isinstance(meta, bytes) else meta.encode())


def shard_in(key: bytes) -> int:
    """Return the shard of a key."""
    found = _SHARD.search(key)
    return int(found[1]) if found else 0


def _error(text: str) -> Exception:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)


class Server:
    """Connections to a redis-server that only one process of the simulator uses."""

    def __init__(self, path: str) -> None:
        self.redis: Any = redis.Redis(unix_socket_path=path)
        self.redis.config_set("maxmemory", 0)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.reader = hiredis.Reader(replyError=_error)
        self.loaded: set[str] = set()
        """The scripts that the server has; compiling a script takes longer than running it."""
        self.has_functions = not isinstance(self.run(("FUNCTION", "FLUSH"))[0], Exception)

    def run(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Run *commands*; return an answer or an error for each."""
        self.socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        answers: list[Any] = []
        gets = self.reader.gets
        while len(answers) < len(commands):
            if (answer := gets()) is not False:
                answers.append(answer)
            elif data := self.socket.recv(1 << 16):
                self.reader.feed(data)
            else:
                raise EOFError("the redis-server of the simulator has ended")
        return answers

    def forget(self) -> None:
        """Remove all scripts and functions."""
        self.run(("SCRIPT", "FLUSH"), ("FUNCTION", "FLUSH"))
        self.loaded.clear()


class Reader:
    """The part of redis-py that `support.stored` uses; it is three times as fast as redis-py."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def pipeline(self, transaction: bool) -> Pipeline:
        return Pipeline(self._server)

    def hget(self, key: Any, field: str) -> Any:
        return self._read(lambda value: value, "HGET", key, field)

    def keys(self, pattern: str) -> Any:
        return self._read(list, "KEYS", pattern)

    def hgetall(self, key: Any) -> Any:
        return self._read(lambda flat: dict(zip(flat[::2], flat[1::2], strict=True)), "HGETALL", key)

    def smembers(self, key: Any) -> Any:
        return self._read(set, "SMEMBERS", key)

    def lrange(self, key: Any, first: int, last: int) -> Any:
        return self._read(list, "LRANGE", key, first, last)

    def zrange(self, key: Any, first: int, last: int, withscores: bool = False) -> Any:
        if not withscores:
            return self._read(list, "ZRANGE", key, first, last)
        read = lambda flat: list(zip(flat[::2], map(float, flat[1::2]), strict=True))  # noqa: E731
        return self._read(read, "ZRANGE", key, first, last, "WITHSCORES")

    def _read(self, read: Callable[[Any], Any], *command: Any) -> Any:
        return read(self._server.run(command)[0])


class Pipeline(Reader):
    """A Reader that sends many commands at once."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._queued: list[tuple[Callable[[Any], Any], tuple[Any, ...]]] = []

    def execute(self) -> list[Any]:
        answers = self._server.run(*(command for _, command in self._queued))
        return [read(answer) for (read, _), answer in zip(self._queued, answers, strict=True)]

    def _read(self, read: Callable[[Any], Any], *command: Any) -> Any:
        self._queued.append((read, command))


class Store:
    """The Redis of a schedule with simulated facts about its disk."""

    def __init__(self, server: Server, world: World, functions: bool) -> None:
        """
        Args:
            functions: whether Redis has functions, as since version 7; an older server runs scripts instead.
        """
        self._server = server
        self._functions = functions
        self.redis = server.redis
        self.reader: Any = Reader(server)
        self._world = world
        self.clock_offset_s = 0.0
        self.frozen: defaultdict[int, float] = defaultdict(float)
        """The time until which each shard is frozen."""
        self.former: dict[int, Snapshot] = {}
        """For each shard, the data of a former master that is cut off but still reached by some workers."""
        self.full = False
        self._known: set[str] | None = None  # None: Redis knows all scripts, until it forgets them
        server.run(("FLUSHALL",))

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Run one command at the world's time; return redis-py's result or Redis's error."""
        if name == "evalsha":
            return self._script(*args)
        if name == "eval":
            return self._load(digest(args[0]), *args[1:])
        if name == "fcall":
            return self._function(*args)
        if name == "function_load":
            return self._known is not None and self._known.add(
                args[0].partition("name=")[2].partition("\n")[0]
            )
        if name == "info":
            return self.info()
        if name == "time":
            seconds, micros = self._clock()
            return seconds, micros
        try:
            return getattr(self.redis, name)(*args, **options)
        except redis.RedisError as error:
            return error

    def run(self, *command: Any) -> Any:
        """Run one command without the simulated network; return the answer as hiredis reads it."""
        return self._server.run(command)[0]

    def info(self) -> dict[str, Any]:
        """Return an INFO of a server with fast disks that writes its AOF each second."""
        return {
            "redis_version": "6.2.14", "run_id": "simulated", "aof_enabled": 1, "aof_pending_bio_fsync": 0,
            "aof_last_write_status": "ok", "connected_slaves": 0,
        }  # fmt: skip

    def forget_scripts(self) -> None:
        """Answer as after SCRIPT FLUSH from now on."""
        self._known = set()

    def snapshot(self, shard: int | None = None) -> Snapshot:
        """Return all keys, or a shard's keys, in the form that `restore` takes."""
        names = sorted(self.names(shard))
        return dict(zip(names, self._server.run(*(("DUMP", name) for name in names)), strict=True))

    def restore(self, snapshot: Snapshot, shard: int | None = None) -> None:
        """Replace all keys, or a shard's keys; the scripts are also gone."""
        self.forget_scripts()
        self._replace(snapshot, shard)

    @contextmanager
    def former_master(self, shard: int) -> Iterator[None]:
        """Let a shard's former master run the calls inside the `with` block."""
        present = self.snapshot(shard)
        self._replace(self.former[shard], shard)
        yield
        self.former[shard] = self.snapshot(shard)
        self._replace(present, shard)

    def _replace(self, snapshot: Snapshot, shard: int | None) -> None:
        self._server.run(
            ("DEL", b"", *self.names(shard)),
            *(("RESTORE", name, 0, value) for name, value in snapshot.items()),
        )

    def names(self, shard: int | None = None) -> set[bytes]:
        """Return the names of all keys except the clock's, or with *shard* only that shard's.

        The start keys belong to home.
        """
        names = set(self._server.run(("KEYS", "*"))[0]) - {SECONDS.encode(), MICROS.encode()}
        return {name for name in names if shard is None or shard_in(name) == shard}

    def _clock(self) -> tuple[int, int]:
        seconds, fraction = divmod(self._world.now + self.clock_offset_s, 1)
        return int(seconds), int(fraction * 1_000_000)

    def _load(self, sha: str, *args: Any) -> Any:
        if self._known is not None:
            self._known.add(sha)
        return self._script(sha, *args)

    def _script(self, sha: str, *args: Any) -> Any:
        if self._known is not None and sha not in self._known:
            return NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        return self._run("EVALSHA", ("SCRIPT", "LOAD"), sha, *args)

    def _function(self, name: str, *args: Any) -> Any:
        if not self._functions:
            return ResponseError("unknown command 'FCALL'")
        if self._known is not None and name not in self._known:
            return ResponseError("Function not found")
        if self.full:
            return OutOfMemoryError("allow-oom flag is not set on the function")
        if not self._server.has_functions:
            return self._run("EVALSHA", ("SCRIPT", "LOAD"), _scripts[name], *args)
        return self._run("FCALL", ("FUNCTION", "LOAD"), name, *args)

    def _run(self, call: str, load: tuple[str, str], name: str, *args: Any) -> Any:
        if name not in self._server.loaded:
            self._server.run((*load, _sources[name]))
            self._server.loaded.add(name)
        seconds, micros = self._clock()
        clock = ("MSET", SECONDS, seconds, MICROS, micros)
        command = (call, name, *args)
        if self.full:
            limit = ("CONFIG", "SET", "maxmemory")
            return self._server.run(clock, (*limit, 1), command, (*limit, 0))[2]
        return self._server.run(clock, command)[1]
