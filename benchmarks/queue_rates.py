"""Measures the items per second of a scrapy_dq.Queue and of a queue.Queue, and prints a table.

Run with PYTHONPATH=tests. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.redis_here import measured_on, start_redis
from benchmarks.tables import markdown, spread, tell, write_json
from scrapy_dq import Queue

ITEM = {"url": "http://localhost/" + "a" * 60, "meta": {"depth": 3}}
MANY = 20
"""put_all() gets MANY times as many items as put()."""


@dataclass
class Rate:
    """One measurement: a number of items in a number of seconds."""

    what: str
    threads: int
    repetition: int
    items: int
    seconds: float
    cpu_seconds: float
    """CPU time of this process, without Redis."""


def timed(what: str, threads: int, repetition: int, items: int, work: Callable[[int], None]) -> Rate:
    """Run *work* in *threads* threads, each with its share of *items*."""
    share = items // threads
    workers = [threading.Thread(target=work, args=(share,)) for _ in range(threads)]
    began, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Rate(
        what, threads, repetition, share * threads, time.perf_counter() - began, time.process_time() - cpu
    )


def measure(q: Any, threads: int, repetition: int, items: int) -> Iterator[Rate]:
    """Put all items, then get all items. With one thread, also measure put_all()."""

    def put(count: int) -> None:
        for _ in range(count):
            q.put(ITEM)

    def get(count: int) -> None:
        for _ in range(count):
            q.get()
            q.task_done()

    yield timed("put", threads, repetition, items, put)
    yield timed("get, task_done", threads, repetition, items, get)
    q.join()
    if threads == 1 and isinstance(q, Queue):
        many = items * MANY
        yield timed("put_all", 1, repetition, many, lambda count: q.put_all([ITEM] * count))


@contextmanager
def ours() -> Iterator[Queue]:
    """Yield a queue on a new Redis."""
    with (
        start_redis(aof=True) as server,
        Queue("benchmark", url=server.url) as q,
    ):
        q.qsize()
        yield q


def table(rates: list[Rate], options: argparse.Namespace) -> str:
    """Return the markdown table, with the conditions below it."""
    rows = []
    for what, threads in dict.fromkeys((rate.what, rate.threads) for rate in rates):
        mine = [rate for rate in rates if (rate.what, rate.threads) == (what, threads)]
        per_second = [rate.items / rate.seconds for rate in mine]
        cpu = [rate.cpu_seconds / rate.items * 1e6 for rate in mine]
        rows.append([what, str(threads), spread(per_second), spread(cpu)])
    return "\n\n".join([
        markdown(["call", "threads", "items per second", "µs of CPU of this process per item"], rows),
        f"Medians (lowest–highest) of {options.repetitions} repetitions, of {options.items:,} items each "
        f"({MANY} times as many for put_all). {measured_on(('redis',), 'AOF everysec, loopback')}.",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write every result to this file")
    options = parser.parse_args()
    rates: list[Rate] = []
    for repetition in range(options.repetitions):
        for threads in options.threads:
            with ours() as q:
                rates += measure(q, threads, repetition, options.items)
            tell(f"repetition {repetition + 1}, {threads} threads")
    plain: queue.Queue[Any] = queue.Queue()
    for rate in measure(plain, 1, 0, 100_000):
        tell(f"queue.Queue, {rate.what}: {rate.items / rate.seconds:,.0f} per second")
    print(table(rates, options))
    write_json(options.json, [asdict(rate) for rate in rates])


if __name__ == "__main__":
    main()
