"""The network between processes and Redis, which loses, delays and repeats calls and answers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any

from redis.exceptions import ConnectionError as Cut
from redis.exceptions import ResponseError

from simulation.store import Store, shard_called, transition_of
from simulation.virtual import Process, World


@dataclass(frozen=True)
class Rates:
    """The rate of each fault per call, from 0 to 1."""

    lost: float = 0.0
    """The call does not reach Redis."""
    unanswered: float = 0.0
    """Redis runs the call, and its answer is lost."""
    late: float = 0.0
    """Redis runs the call after its sender has given up or is dead."""
    twice: float = 0.0
    """Redis runs and answers the call, and runs it again later."""

    def drawn(self, number: float) -> str:
        """Return the fault for a number from 0 to 1, or "" for none."""
        for name, rate in vars(self).items():
            number -= rate
            if number < 0:
                return name
        return ""


NONE = Rates()
MAX_SHARDS = 5
Watch = Callable[[Process, str, tuple[Any, ...], Any], None]


class Network:
    """Carries calls to the store and answers back."""

    def __init__(self, world: World, store: Store, rates: Rates, timeout_s: float) -> None:
        self.world = world
        self.store = store
        self.rates = rates
        self.timeout_s = timeout_s
        self.away_until: defaultdict[int, float] = defaultdict(float)
        self._apart_until: defaultdict[tuple[Process, int], float] = defaultdict(float)
        self.without_exchanges: set[Process] = set()
        """Processes whose heartbeats reach Redis, but not the calls of their event loops."""
        self.astray: dict[tuple[Process, int], float] = {}
        """For a process and a shard, the share of calls that reach the former master, from 0 to 1."""
        self.calls = 0
        self.generations: Counter[int] = Counter()
        """How often all connections to a shard were cut."""
        self.strikes: dict[tuple[str, int, str], Callable[[Process], None]] = {}
        """Actions on the sender of a call, by the call's transition, its number and its stage."""
        self._numbers: Counter[str] = Counter()
        self.watch: Watch = lambda process, transition, args, outcome: None
        """Called with each executed call and its outcome."""
        self.after: dict[Process, Callable[[Callable[[], None]], None]] = {}
        """Actions after a process's next applied exchange; each gets a function that repeats the call."""
        self.answered_at: dict[Process, float] = {}
        """The arrival of the last answer to each process's event loop."""
        self.trace: Callable[[str], None] | None = None

    def cut(self, away_s: float = 0.0, shard: int | None = None) -> None:
        """Cut all connections, or a shard's. Calls on their way and answers are lost; late copies arrive."""
        for each in range(MAX_SHARDS) if shard is None else (shard,):
            self.generations[each] += 1
            self.away_until[each] = max(self.away_until[each], self.world.now + away_s)

    def part(self, process: Process, shard: int, away_s: float) -> None:
        """Let no call of a process reach a shard for a while."""
        at = process, shard
        self._apart_until[at] = max(self._apart_until[at], self.world.now + away_s)

    @property
    def cut_off(self) -> set[Process]:
        """The processes that are cut off from Redis or a shard until `mend`."""
        return self.without_exchanges | {who for (who, _), until in self._apart_until.items() if until == inf}

    def mend(self) -> None:
        """Reconnect all processes that were cut off."""
        self.without_exchanges.clear()
        self._apart_until.clear()

    def begins(self, process: Process, transition: str, shard: int) -> tuple[int, str]:
        """Count a call; return its number within its transition, and its fault."""
        self.calls += 1
        self._numbers[transition] += 1
        away = self.world.now < max(self.away_until[shard], self._apart_until[process, shard])
        fault = "lost" if away else self.rates.drawn(self.world.random.random())
        return self._numbers[transition], fault

    def strike(self, transition: str, number: int, stage: str, process: Process) -> None:
        """Run the plan's action for this stage of a call, if there is one."""
        if self.strikes and (do := self.strikes.pop((transition, number, stage), None)) is not None:
            do(process)

    def apply(
        self, process: Process, name: str, args: tuple[Any, ...], options: dict[str, Any], note: str
    ) -> Any:
        """Let Redis execute a call; return its answer. *note* is added to the trace."""
        transition, shard = transition_of(name, args), shard_called(name, args)
        astray = self.astray.get((process, shard), 0.0)
        former = astray > 0 and self.world.random.random() < astray
        with self.store.former_master(shard) if former else nullcontext():
            outcome = self.store.call(name, *args, **options)
            self.watch(process, transition, args, outcome)
        if self.trace:
            note += ", by the former master" if former else ""
            self.trace(f"{process.name} {transition} {shown(outcome)} {note}")
        return outcome

    def latency_s(self) -> float:
        return self.world.random.uniform(0.0001, 0.003)


class Client:
    """The part of `redis.asyncio.Redis` that a frontier uses."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def client(self) -> Client:
        """Return a client with its own connection."""
        return self

    async def initialize(self) -> Client:
        return self

    async def aclose(self) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **options: self._call(name, *args, **options)

    async def execute_command(self, *command: Any) -> Any:
        raise ResponseError("unknown command")  # as an old Redis without WAIT and WAITAOF

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        network, process = self._network, self._process
        world, thread = network.world, process.main
        transition, shard = transition_of(name, args), shard_called(name, args)
        number, fault = network.begins(process, transition, shard)
        if process in network.without_exchanges:
            fault = "lost"
        generation = network.generations[shard]
        answer: asyncio.Future[Any] = process.loop.create_future()

        def run() -> None:
            if world.now < network.store.frozen[shard]:
                world.at(network.store.frozen[shard], run)
            elif fault == "late" or network.generations[shard] == generation:
                if fault == "twice":
                    later_s = world.random.choice((0.01, 0.1, network.timeout_s)) * world.random.random()
                    world.at(world.now + later_s, repeat)
                outcome = network.apply(process, name, args, options, f"{number} {fault}")
                network.strike(transition, number, "applied", process)
                if transition == "exchange" and (do := network.after.pop(process, None)):
                    do(repeat)
                if fault in ("", "twice"):
                    world.at(world.now + network.latency_s(), lambda: reply(outcome), thread)

        def repeat() -> None:
            network.apply(process, name, args, options, f"{number} once more")

        def reply(outcome: Any) -> None:
            if network.generations[shard] == generation:
                network.answered_at[process] = world.now
                settle(outcome)
                network.strike(transition, number, "answered", process)

        def settle(outcome: Any) -> None:
            if not answer.done():
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

        arrives_s = world.now + network.latency_s()
        if fault == "late":
            arrives_s += world.random.uniform(0.0, 2 * network.timeout_s)
        if fault != "lost":
            world.at(arrives_s, run)
        if fault and fault != "twice":
            ends_s = world.now + world.random.choice((0.0, 0.01, network.timeout_s))
            world.at(ends_s, lambda: settle(Cut("simulated")), thread)
        else:
            process.loop.call_at(world.now + network.timeout_s, settle, Cut("simulated"))
        network.strike(transition, number, "sent", process)
        return await answer


class BlockingClient:
    """The part of `redis.Redis` that a command uses; its calls take no time."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._call(name, *args, **options)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        network, process = self._network, self._process
        assert network.world.running is not process.main, "the event loop waits for Redis"
        transition, shard = transition_of(name, args), shard_called(name, args)
        number, fault = network.begins(process, transition, shard)
        if fault == "lost" or network.world.now < network.store.frozen[shard]:
            raise Cut("simulated")
        outcome = network.apply(process, name, args, options, f"{number} {fault}")
        if fault and fault != "twice":
            raise Cut("simulated")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None: ...


class HeartbeatClient(BlockingClient):
    """A BlockingClient for a heartbeat, which awaits its calls."""

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        return super()._call(name, *args, **options)


def shown(outcome: Any) -> str:
    """Return a short text about an answer, for the trace."""
    if isinstance(outcome, list) and outcome:
        first = outcome[0]
        return first.decode("latin-1") if isinstance(first, bytes) else f"{len(outcome)} values"
    return str(outcome)[:40]
