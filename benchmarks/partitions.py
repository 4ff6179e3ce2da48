"""Measures the cost of a put, a lease and an ack with few and with many partitions. Prints tables.

Run with PYTHONPATH=tests. The tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benchmarks.redis_here import measured_on, start_redis
from benchmarks.tables import markdown, ratios, spread, tell, write_json
from scrapy_dq.frontier import Frontier, wire
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.model import Admission, Identity, Limits, Order, Seeding
from scrapy_dq.frontier.moves import Ack, Move, Put
from support.redis_server import RedisServer

COUNTS = [10, 100, 1_000, 10_000, 100_000]
WANTS = [16, 32, 100]
MOVES = 100
"""The number of puts or of acks in one exchange."""
BLOCK = 10_000
"""Number of leases that a worker takes before it acks them."""
PAYLOAD_BYTES = 250

T = TypeVar("T")


@dataclass
class Cost:
    """The cost of all puts, all leases, or all acks together."""

    requests: int = 0
    seconds: float = 0.0
    redis_seconds: float = 0.0
    """CPU time of the Redis process."""


@dataclass
class Run:
    """One crawl: all entries are put. Then they are leased and acked in blocks, until none is left."""

    partitions: int
    want: int
    repetition: int
    put: Cost = field(default_factory=Cost)
    lease: Cost = field(default_factory=Cost)
    ack: Cost = field(default_factory=Cost)
    bytes_per_entry: float = 0.0
    """Bytes of Redis while all entries wait."""


class OneWorker:
    """The only worker of a crawl. Its exchanges are timed from the call to the receipt."""

    def __init__(self, server: RedisServer, limits: Limits) -> None:
        self._look = server.client()
        self._client = redis.asyncio.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))
        self._frontier = Frontier(self._client, "benchmark", Order.PRIORITY_LIFO)
        self._crawl = Identity("fingerprinter", "spider", "{}", partition_by="slot", limits=limits)
        self._seq = self._held = 0

    async def join(self) -> None:
        """Start the crawl."""
        joined = await self._frontier.join("worker", {}, uuid4().hex, self._crawl)
        self._epoch, self._run = joined.epoch, joined.run

    async def exchange(self, cost: Cost, moves: Sequence[Move] = (), want: int = 0) -> Receipt:
        """Make one exchange and add its time to *cost*."""
        packed = wire.pack_moves(moves)
        self._seq += 1
        began = time.perf_counter()
        receipt = await self._frontier.exchange(
            Exchange("worker", self._epoch, self._run, self._seq, want, Seeding.DONE, self._held, packed)
        )
        cost.seconds += time.perf_counter() - began
        cost.requests += len(moves) + len(receipt.leases)
        self._held += len(receipt.leases) - sum(isinstance(move, Ack) for move in moves)
        if not receipt.applied:
            raise RuntimeError(f"the frontier answered {receipt.status.value}")
        return receipt

    def redis_seconds(self) -> float:
        """Return the CPU time of Redis so far."""
        cpu = self._look.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def memory_bytes(self) -> int:
        """Return the memory that Redis uses."""
        return int(self._look.info("memory")["used_memory"])

    async def close(self) -> None:
        """Disconnect."""
        self._look.close()
        await self._client.aclose()


def puts(entries: int, partitions: int, rng: random.Random) -> Iterator[Put]:
    """Yield the puts. The partitions take turns, so no partition has two entries in a row."""
    for n in range(entries):
        payload, token = rng.randbytes(PAYLOAD_BYTES), rng.randbytes(20)
        partition = b"www.example-%06d.com" % (n % partitions)
        yield Put(b"%012d" % n, Admission.SEEN, token, 0, False, payload, partition=partition)


def batches(of: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield lists of *size*, and then a list of the remaining elements."""
    while batch := list(islice(of, size)):
        yield batch


async def run(partitions: int, want: int, repetition: int, options: argparse.Namespace) -> Run:
    """Put everything, and lease and ack it block by block, on a new Redis."""
    result = Run(partitions, want, repetition)
    with start_redis(aof=True) as server:
        worker = OneWorker(server, Limits(concurrency=options.concurrency))
        await worker.join()
        empty = worker.memory_bytes()
        before = worker.redis_seconds()
        for some in batches(puts(options.entries, partitions, random.Random(repetition)), MOVES):
            await worker.exchange(result.put, some)
        result.put.redis_seconds = worker.redis_seconds() - before
        result.bytes_per_entry = (worker.memory_bytes() - empty) / options.entries
        while result.lease.requests < options.entries:
            leased: list[bytes] = []
            before = worker.redis_seconds()
            while len(leased) < BLOCK and (got := (await worker.exchange(result.lease, want=want)).leases):
                leased += (lease.entry_id for lease in got)
            between = worker.redis_seconds()
            if not leased:
                raise RuntimeError(f"{result.lease.requests} of {options.entries} entries could be leased")
            for acks in batches(map(Ack, leased), MOVES):
                await worker.exchange(result.ack, acks)
            result.lease.redis_seconds += between - before
            result.ack.redis_seconds += worker.redis_seconds() - between
        await worker.close()
    return result


def tables(runs: Sequence[Run], options: argparse.Namespace) -> str:
    """Return the markdown tables, with the conditions below them."""
    ran_on = measured_on(("redis",), "AOF everysec, no rewrites")
    limit = f", each limited to {options.concurrency:,} at once" if options.concurrency else ""
    memory = {r.partitions: r.bytes_per_entry for r in runs}
    return "\n\n".join([
        "µs per request, from the call to its answer:",
        _table(runs, options, lambda cost: cost.seconds),
        "µs of Redis's CPU per request:",
        _table(runs, options, lambda cost: cost.redis_seconds),
        f"Medians (lowest–highest) of {options.repetitions} repetitions. Bold: the ratio to the row with "
        f"{options.partitions[0]} partitions in the same repetition. {options.entries:,} entries of "
        f"{PAYLOAD_BYTES} bytes are spread evenly over the partitions{limit}. One worker puts all of them, "
        f"{MOVES} per exchange. It then leases {BLOCK:,} and acks these, {MOVES} per exchange, until none is "
        "left. An exchange either puts, or leases, or acks.",
        "Bytes of Redis per waiting entry: "
        + ", ".join(f"{memory[count]:,.0f} with {count:,} partitions" for count in options.partitions)
        + ".",
        f"{ran_on}.",
    ])  # fmt: skip


def _table(runs: Sequence[Run], options: argparse.Namespace, seconds: Callable[[Cost], float]) -> str:
    fewest = options.partitions[0]

    def cell(cost: Callable[[Run], Cost], partitions: int, wants: Sequence[int]) -> str:
        def figures(of: int) -> list[float]:
            found = [cost(r) for r in runs if r.partitions == of and r.want in wants]
            return [seconds(c) / c.requests * 1e6 for c in found]

        mine = figures(partitions)
        if partitions == fewest:
            return spread(mine, 1)
        return f"{spread(mine, 1)}, **× {spread(ratios(mine, figures(fewest)), 2)}**"

    wanted = [f"lease, {want} wanted" for want in options.wants]
    head = ["partitions", "put", *wanted, "ack"]
    rows = []
    for partitions in options.partitions:
        rows.append([
            f"{partitions:,}",
            cell(lambda r: r.put, partitions, options.wants),
            *(cell(lambda r: r.lease, partitions, [want]) for want in options.wants),
            cell(lambda r: r.ack, partitions, options.wants),
        ])  # fmt: skip
    return markdown(head, rows)


def describe(run: Run) -> str:
    """Return the result in one line."""
    costs: list[tuple[str, Cost]] = [("put", run.put), ("lease", run.lease), ("ack", run.ack)]
    figures = ", ".join(
        f"{name} {c.seconds / c.requests * 1e6:.1f} µs (Redis {c.redis_seconds / c.requests * 1e6:.1f})"
        for name, c in costs
    )
    return f"{run.partitions:7,} partitions, {run.want:3} wanted #{run.repetition}: {figures}"


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="PYTHONPATH=tests python -m benchmarks.partitions",
        description="Put, lease and ack the same number of entries in few and in many partitions, and print "
        "the costs as markdown tables.",
    )
    parser.add_argument("--repetitions", type=int, default=3, help="runs per figure (default: 3)")
    parser.add_argument("--entries", type=int, default=200_000, help="entries per run (default: 200000)")
    parser.add_argument(
        "--partitions", type=int, nargs="+", default=COUNTS, metavar="N",
        help=f"how many; the others are compared with the first (default: {' '.join(map(str, COUNTS))})",
    )  # fmt: skip
    parser.add_argument(
        "--wants", type=int, nargs="+", default=WANTS, metavar="N",
        help=f"wanted leases per exchange (default: {' '.join(map(str, WANTS))})",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=int, default=0, metavar="N",
        help="limit of each partition; a high limit shows the cost of checking it (default: none)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run to FILE")
    options = parser.parse_args()
    if options.repetitions < 1 or options.entries < max(options.partitions):
        parser.error("at least 1 repetition, and an entry for every partition")
    return options


def main() -> None:
    """Run the crawls that the command line asks for."""
    options = parse_args()
    runs: list[Run] = []
    for repetition in range(options.repetitions):
        for want in options.wants:
            for partitions in options.partitions:
                runs.append(asyncio.run(run(partitions, want, repetition, options)))
                tell(describe(runs[-1]))
                write_json(options.json, [asdict(r) for r in runs])
    print(tables(runs, options))


if __name__ == "__main__":
    main()
