"""Measures pages per second, and their cost for Redis, of workers without Scrapy in one or several shards.

The workers use the real protocol, but a page is only a number, and its links are known without a download.
For comparison, other workers send scrapy-redis's commands for the same pages. Run with PYTHONPATH=tests and
the extra `bench`. The module prints a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.redis_here import found_kinds, measured_on, start_redis, used_seconds
from benchmarks.scale_worker import HOSTS, KNOWN, LINKS
from benchmarks.tables import markdown, spread, tell, write_json
from scrapy_dq.frontier.keys import PREFIX
from support.redis_server import Kind

STARTS, MIN_STARTS = 20_000, 50
"""The number of start requests of all workers together, and the minimum for each worker.

Pages have few new links. So with one start request, a crawl would soon have no requests left.
"""
PEER_STARTS = 100
"""The number of start requests of a scrapy-redis worker. Each of them needs a round trip."""


class Load(NamedTuple):
    """The work, and the Redis for it."""

    workers: int
    server: Kind
    rate: float = float("inf")
    """Pages per second, of all workers together."""
    burst: int = 1
    """Pages that a worker gets at the same time, as a busy Scrapy handles several responses in a row."""
    processes: int = 2
    seconds: float = 10.0
    warm_up: float = 15.0
    away: float = 0.1
    """The share of the links that lead to another site."""


@dataclass
class Run:
    """One measurement."""

    what: str
    """The name of the row: the number of shards, scrapy-redis, or a crew of many_workers.py."""
    servers: int
    workers: int
    repetition: int
    pages_per_s: float = 0.0
    redis_us: float = 0.0
    """CPU time of all servers per page."""
    client_us: float = 0.0
    """CPU time of all worker processes per page."""
    batch: float = 0.0
    """Pages per exchange of a worker."""
    busiest: float = 0.0
    """The number of cores that the busiest server used."""
    p99_ms: float = 0.0
    """The 99th percentile of the milliseconds of an exchange, from the call to the answer."""
    worker_bytes: float = 0.0
    """Redis's memory per worker: the worker's keys, including its leases, and the client connections."""
    idle_us: float = 0.0
    """CPU time of all servers per second and worker."""


def measure(what: str, shards: int, servers: int, repetition: int, load: Load) -> Run:
    """Crawl for a while, and return the result.

    Args:
        shards: the number of shards. With 0, workers send scrapy-redis's commands, each in its own process
            and as fast as possible.
    """
    run = Run(what, servers, load.workers, repetition)
    with ExitStack() as stack:
        redises = [stack.enter_context(start_redis(load.server, aof=True)) for _ in range(servers)]
        looks = [stack.enter_context(each.client()) for each in redises]
        began = time.monotonic() + load.warm_up
        until = began + load.seconds
        processes = load.processes if shards else load.workers
        seeds = [list(range(1, load.workers + 1))[number::processes] for number in range(processes)]
        starts = max(MIN_STARTS, STARTS // load.workers) if shards else PEER_STARTS
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scale_worker", json.dumps({
                    "urls": [each.url for each in redises], "shards": shards, "seeds": mine,
                    "away": load.away, "page_s": load.workers / load.rate, "burst": load.burst,
                    "starts": starts, "begin": began, "until": until,
                })],
                stdout=subprocess.PIPE, text=True,
            )
            for mine in seeds if mine
        ]  # fmt: skip
        time.sleep(max(0.0, began - time.monotonic()))
        before = [used_seconds(look) for look in looks]
        time.sleep(max(0.0, until - time.monotonic()))
        used = [used_seconds(look) - was for look, was in zip(looks, before, strict=True)]
        run.worker_bytes = sum(map(_bytes_of_workers, looks)) / load.workers
        reports = [json.loads(each.communicate()[0]) for each in children]
    pages = sum(each["pages"] for each in reports)
    taken = sorted(s for each in reports for s in each["s"])
    run.pages_per_s = pages / load.seconds
    run.redis_us = sum(used) / max(1, pages) * 1e6
    run.client_us = sum(each["cpu_s"] for each in reports) / max(1, pages) * 1e6
    run.busiest = max(used) / load.seconds
    run.idle_us = sum(used) / load.seconds / load.workers * 1e6
    run.batch = pages / max(1, len(taken))
    run.p99_ms = taken[int(len(taken) * 0.99)] * 1000 if taken else 0.0
    return run


def _bytes_of_workers(look: Any) -> int:
    names: list[bytes] = []
    for kind in ("worker", "in-flight"):
        names += look.scan_iter(f"{PREFIX}*}}:{kind}:*", 1000)
    of_keys = sum(look.memory_usage(name, samples=0) or 0 for name in names)
    return int(of_keys + look.info("memory")["mem_clients_normal"])


def table(runs: Sequence[Run], load: Load, repetitions: int) -> str:
    """Return the markdown table, with the conditions below it."""
    head = [
        "shards", "servers", "pages/s", "Redis µs/page", "workers µs/page", "pages/exchange",
        "cores of the busiest", "p99, ms",
    ]  # fmt: skip
    rows = []
    for what, servers in dict.fromkeys((run.what, run.servers) for run in runs):
        of = [run for run in runs if (run.what, run.servers) == (what, servers)]
        rows.append([
            what, str(servers), spread([run.pages_per_s for run in of]),
            spread([run.redis_us for run in of], 1), spread([run.client_us for run in of], 1),
            spread([run.batch for run in of], 1), spread([run.busiest for run in of], 2),
            spread([run.p99_ms for run in of], 1),
        ])  # fmt: skip
    return (
        f"{markdown(head, rows)}\n\nMedians (lowest–highest) of {repetitions} repetitions of "
        f"{load.seconds:g} s; {load.workers} workers in {load.processes} processes, without Scrapy, "
        f"{'as fast as they can' if load.rate == float('inf') else f'{load.rate:g} pages/s'}; "
        f"{LINKS} links a page, {KNOWN:.0%} known, {load.away:.0%} to another "
        f"one of {HOSTS:,} sites.\n\n"
        f"{measured_on(('redis',), 'AOF everysec', load.server)}."
    )


def main() -> None:
    """Run the crawls that the command line asks for."""
    usual = Load._field_defaults
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tests python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 12], metavar="N")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 1, 1, 1], metavar="N", help="for each")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=usual["processes"])
    parser.add_argument(
        "--rate", type=float, default=usual["rate"], metavar="PAGES",
        help="pages per second of all workers: Redis's cost per page also depends on how busy Redis is",
    )  # fmt: skip
    parser.add_argument("--burst", type=int, default=usual["burst"], metavar="PAGES", help="pages at once")
    parser.add_argument(
        "--away", type=float, default=usual["away"], metavar="SHARE",
        help="share of the links that lead to another site",
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=usual["seconds"])
    parser.add_argument(
        "--warm-up", type=float, default=usual["warm_up"], help="longer than DQ_ROLLBACK_HORIZON"
    )
    parser.add_argument("--server", choices=found_kinds(), default=found_kinds()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run to FILE")
    options = parser.parse_args()
    if importlib.util.find_spec("uvloop") is None:
        parser.error("uvloop is missing: make .venv/.installed-bench")
    load = Load(*(getattr(options, name) for name in Load._fields))
    runs: list[Run] = []
    kinds = [(str(n), n, m) for n, m in zip(options.shards, options.servers, strict=True)]
    for repetition in range(options.repetitions):
        for what, shards, servers in (*kinds, ("scrapy-redis", 0, 1)):
            runs.append(measure(what, shards, servers, repetition, load))
            tell(f"{runs[-1]}")
            write_json(options.json, [asdict(run) for run in runs])
    print(table(runs, load, options.repetitions))


if __name__ == "__main__":
    main()
