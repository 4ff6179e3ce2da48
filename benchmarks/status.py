"""Measures how long `scrapy dq status` looks at a large crawl, and lists the Redis commands that it uses.

Run with PYTHONPATH=tests. The table goes to standard output, progress to standard error. The exit status is 1
if a look read a whole key, or if the median look took longer than 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.partitions import MOVES, Cost, OneWorker, batches, puts
from benchmarks.redis_here import measured_on, start_redis
from benchmarks.tables import markdown, spread, tell, write_json
from scrapy_dq.frontier import limit
from scrapy_dq.frontier.model import Limits
from scrapy_dq.frontier.moves import Put
from scrapy_dq.inspection.place import Place, opened
from scrapy_dq.inspection.snapshot import watched
from scrapy_dq.settings import Config
from support.redis_server import RedisServer

BAR_S = 0.1
CRAWL = "benchmark"
LIMITED, BLOCKED = 1000, 500
"""The number of partitions with their own limits, and of blocked partitions."""
OF_THE_COMMANDS_SIZE = {
    "type", "exists", "hmget", "hget", "hlen", "llen", "scard", "zcard", "zmscore", "hscan", "time", "info",
    "evalsha", "eval", "client", "client|setinfo", "select", "ping", "script", "script|load",
}  # fmt: skip
"""Commands that read only the size of a key, or a part of stated size."""
BOUNDED = {"zrangebylex", "zrevrange"}
"""Commands that lua/sizes.lua calls with a LIMIT or a range."""
OF_WORKERS = {"smembers"}
"""Commands that read the whole set of workers, because each worker is shown or counted. The set is small."""


@dataclass
class Look:
    """One look at a crawl."""

    limits: str
    repetition: int
    seconds: float
    looked_at: int
    longest_call_ms: float
    """The longest call of this look, by Redis's own clock. During a call, Redis serves no other client."""


def entries(options: argparse.Namespace) -> Iterator[Put]:
    """Yield the entries. Every fourth partition has entries of three priorities."""
    for n, put in enumerate(puts(options.entries, options.partitions, random.Random(0))):
        fourth = n % options.partitions % 4 == 0
        yield replace(put, priority=n // options.partitions % 3) if fourth else put


async def fill(server: RedisServer, options: argparse.Namespace) -> None:
    """Put all entries."""
    worker = OneWorker(server, Limits())
    await worker.join()
    began, stored = time.perf_counter(), 0
    for some in batches(entries(options), MOVES):
        await worker.exchange(Cost(), some)
        stored += len(some)
        if stored % 100_000 == 0:
            tell(f"{stored:,} entries after {time.perf_counter() - began:.0f} s")
    await worker.close()


def looks(place: Place, limits: str, options: argparse.Namespace) -> Iterator[Look]:
    """Look repeatedly."""
    for repetition in range(options.repetitions):
        place.client.slowlog_reset()
        began = time.perf_counter()
        status = watched(place, 0.0, turn=True, partitions=True).status()
        seconds = time.perf_counter() - began
        calls_us = [call["duration"] for call in place.client.slowlog_get(1000)]
        look = Look(limits, repetition, seconds, status["partitions_looked_at"], max(calls_us) / 1000)
        tell(f"{limits}, look {repetition + 1}: {seconds * 1000:.0f} ms, {look.looked_at:,} partitions")
        yield look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write every result to this file")
    options = parser.parse_args()
    with start_redis(aof=True) as server:
        asyncio.run(fill(server, options))
        with opened(Config(CRAWL, redis_url=server.url)) as place:
            found, called = measure(place, options)
    rows = [
        [
            limits,
            spread([look.seconds * 1000 for look in found if look.limits == limits]),
            spread([look.looked_at for look in found if look.limits == limits]),
            spread([look.longest_call_ms for look in found if look.limits == limits], 1),
        ]
        for limits in dict.fromkeys(look.limits for look in found)
    ]
    head = ["limits", "a look, ms", "partitions looked at", "its longest call, ms"]
    print(markdown(head, rows))
    print(
        f"\nMedians (lowest–highest) of {options.repetitions} looks at {options.entries:,} entries in "
        f"{options.partitions:,} partitions. {measured_on(('redis',), 'AOF everysec, loopback')}.\n"
    )
    print(f"Commands that Redis ran for the looks: {', '.join(sorted(called))}.")
    whole = called - OF_THE_COMMANDS_SIZE - BOUNDED - OF_WORKERS
    print(f"Commands that read whole keys: {', '.join(sorted(whole)) or 'none'} (except the set of workers).")
    write_json(options.json, [asdict(look) for look in found])
    slow = any(median(look.seconds for look in found if look.limits == row[0]) > BAR_S for row in rows)
    sys.exit(1 if whole or slow else 0)


def measure(place: Place, options: argparse.Namespace) -> tuple[list[Look], set[str]]:
    """Return the looks without and with limits, and the names of all commands that Redis ran for them."""
    client: Any = place.client
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 1000)
    own = {"slowlog", "slowlog|reset", "slowlog|get", "config", "config|resetstat"}
    client.config_resetstat()
    found = list(looks(place, "none", options))
    called = set(client.info("commandstats"))
    for n in range(LIMITED):
        limit(client, CRAWL, f"www.example-{n % options.partitions:06d}.com", delay_s=1 + n % 60)
    for n in range(LIMITED, LIMITED + BLOCKED):
        limit(client, CRAWL, f"www.example-{n % options.partitions:06d}.com", block_s=600 + n)
    client.config_resetstat()
    found += looks(place, f"{LIMITED:,} of their own, {BLOCKED} blocked", options)
    called |= set(client.info("commandstats"))
    return found, {name.removeprefix("cmdstat_").lower() for name in called} - own


if __name__ == "__main__":
    main()
