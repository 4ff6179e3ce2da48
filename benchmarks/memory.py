"""Part `memory` measures the memory of Redis and of a worker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scrapy_redis.queue

from benchmarks.drive import FULL_BUFFER, IN_OUTBOX, Plan, drive
from benchmarks.fill import QuickWorker
from benchmarks.part import Bar, Part
from benchmarks.redis_here import compresses, found_kinds, start_redis, titled, used_bytes
from benchmarks.sample import SampleSpider, documentation_puts, puts, request
from benchmarks.tables import markdown
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Seen
from support.redis_server import Kind

PENDING = 10_000
SEEN = 1_000_000
SEEN_IF_SLOW = 250_000
"""The number of fingerprints on each further kind of Redis. pip's Redis runs scripts three times slower.

So many fingerprints fill the hash table of a set to the same degree as a million.
"""
PER_TRIP = 1_000
HELD = 100_000
"""The number of requests that a worker has sent. By default, a worker remembers as many."""
QUEUES = ("PriorityQueue", "FifoQueue", "LifoQueue")
WANTED = {Seen.EXACT: 75, Seen.COMPACT: 7}
"""Maximum bytes per fingerprint."""
WANTED_PENDING, WANTED_COMPRESSED = 130, 60
"""Maximum bytes per waiting request."""
IN_ORDER = "compressed"
DOCUMENTATION_ROWS = (
    ("as it is", False, False),
    (IN_ORDER, True, False),
    ("compressed, shuffled", True, True),
)
CRAWL = "benchmark"
"""The crawl of the QuickWorker."""
OURS, SCRAPY = "scrapy_dq.Scheduler", "scrapy.core.scheduler.Scheduler"
MIB = 1024 * 1024


def only_seen(client: Any, crawl: str) -> None:
    """Delete all keys except `seen`."""
    of_seen = (keys.prefix(crawl) + "seen").encode()
    for key in client.scan_iter(count=1_000):
        if key != of_seen and not key.startswith(of_seen + b":"):
            client.delete(key)


def pending(kind: Kind, *, compressed: bool) -> float:
    """Return the bytes per waiting request that our scheduler stores, without `seen`."""
    with start_redis(kind, compressed=compressed) as server, server.client() as client:
        drive(Plan(OURS, {"REDIS_URL": server.url}, PENDING, ["new"], server.url))
        everything = used_bytes(client)
        only_seen(client, SampleSpider.name)
        return (everything - used_bytes(client)) / PENDING


def pending_of_peer(kind: Kind, queue: str, *, compressed: bool) -> float:
    """Return the bytes per request in one of the queues of scrapy-redis."""
    spider = SampleSpider()
    with start_redis(kind, compressed=compressed) as server, server.client() as client:
        empty = used_bytes(client)
        pipe = client.pipeline(transaction=False)
        requests = getattr(scrapy_redis.queue, queue)(pipe, spider, "%(spider)s:requests")
        for n in range(PENDING):
            requests.push(request(n, spider))
            if len(pipe) == PER_TRIP:
                pipe.execute()
        return (used_bytes(client) - empty) / PENDING


async def documentation(kind: Kind, *, compressed: bool, shuffled: bool) -> float:
    """Return the bytes per waiting page of a real documentation site, without `seen`."""
    with start_redis(kind, compressed=compressed) as server, server.client(socket_timeout=60) as client:
        worker, waiting = QuickWorker(server.url, CRAWL), documentation_puts(shuffled=shuffled)
        await worker.join()
        await worker.fill(waiting)
        await worker.close()
        everything = used_bytes(client)
        only_seen(client, CRAWL)
        return (everything - used_bytes(client)) / len(waiting)


async def seen(kind: Kind, of_seen: Seen) -> dict[str, float]:
    """Return the bytes per fingerprint that real exchanges admitted, and the number of fingerprints."""
    # SADD alone would give other sizes, because libc's allocator depends on the allocations in between.
    count = SEEN if kind == found_kinds()[0] else SEEN_IF_SLOW
    with start_redis(kind) as server, server.client(socket_timeout=60) as client:
        worker = QuickWorker(server.url, CRAWL, seen=of_seen)
        await worker.join()
        await worker.fill(puts(range(count)))
        await worker.close()
        only_seen(client, CRAWL)
        everything = used_bytes(client)
        for key in client.scan_iter(count=1_000):
            client.delete(key)
        return {"count": count, "bytes": (everything - used_bytes(client)) / count}


def seen_of_peer(kind: Kind) -> float:
    """Return the bytes per fingerprint in the dupefilter of scrapy-redis: 40 hexadecimal digits."""
    with start_redis(kind) as server, server.client() as client:
        empty = used_bytes(client)
        for _ in range(0, SEEN, PER_TRIP):
            client.sadd("dupefilter", *(secrets.token_hex(20) for _ in range(PER_TRIP)))
        return (used_bytes(client) - empty) / SEEN


def held() -> dict[str, dict[str, int]]:
    """Return the resident bytes after each step, of a worker and of a process of Scrapy alone."""
    with start_redis() as server:
        room = {"CONCURRENT_REQUESTS": FULL_BUFFER, "CONCURRENT_REQUESTS_PER_DOMAIN": FULL_BUFFER}
        ours = Plan(OURS, {"REDIS_URL": server.url, **room}, HELD, ["held"], server.url)
        return {"ours": drive(ours)["held"], "memory": drive(Plan(SCRAPY, {}, IN_OUTBOX, ["held"]))["held"]}


class Memory(Part):
    """Bytes in Redis per waiting request and per fingerprint, and bytes of the worker's process."""

    name = "memory"
    title = "Memory"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Measure each figure once, because repetitions would give the same sizes."""
        found: dict[str, Any] = {
            "redis": {},
            "pending": {},
            "compressed": {},
            "documentation": {},
            "seen": {},
        }
        for kind in found_kinds():
            found["redis"][kind] = titled(kind)
            for compressed, what in ((False, "pending"), (True, "compressed")):
                if compressed and not compresses(kind):
                    continue
                found[what][kind] = {"scrapy_dq": pending(kind, compressed=compressed)} | {
                    f"scrapy-redis, {queue}": pending_of_peer(kind, queue, compressed=compressed)
                    for queue in QUEUES
                }
                tell(f"bytes per request that waits, {what}, {kind}: {found[what][kind]}")
            found["documentation"][kind] = {
                title: asyncio.run(documentation(kind, compressed=compressed, shuffled=shuffled))
                for title, compressed, shuffled in DOCUMENTATION_ROWS
                if compresses(kind) or not compressed
            }
            tell(f"the same, of a documentation, {kind}: {found['documentation'][kind]}")
            found["seen"][kind] = {
                f"scrapy_dq, {of_seen.value}": asyncio.run(seen(kind, of_seen)) for of_seen in Seen
            } | {"scrapy-redis": {"count": SEEN, "bytes": seen_of_peer(kind)}}
            tell(f"bytes per fingerprint, {kind}: {found['seen'][kind]}")
        found["held"] = held()
        tell(f"resident bytes: {found['held']}")
        return found

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the targets for each kind of Redis, because the sizes depend on the kind."""
        bars = []
        for kind, title_and_allocator in found["redis"].items():
            title = title_and_allocator.partition(" (")[0]
            bars.append(
                Bar(
                    f"bytes per waiting request, without `seen`, {title}",
                    WANTED_PENDING,
                    True,
                    [found["pending"][kind]["scrapy_dq"]],
                )
            )
            for what, size in (
                ("", found["compressed"].get(kind, {}).get("scrapy_dq")),
                (" for real URLs", found["documentation"][kind].get(IN_ORDER)),
            ):
                if size is None:
                    continue
                figure = f"the same{what}, compressed, {title}"
                bars.append(Bar(figure, WANTED_COMPRESSED, True, [size]))
            for of_seen, wanted in WANTED.items():
                size = found["seen"][kind][f"scrapy_dq, {of_seen.value}"]
                figure = f"bytes per URL seen, of {size['count']:,}, {of_seen.value}, {title}"
                bars.append(Bar(figure, wanted, True, [size["bytes"]]))
        return bars

    def section(self, found: dict[str, Any]) -> str:
        """Return the tables."""
        return "\n\n".join([
            f"Bytes of Redis per waiting request, without fingerprints; {PENDING:,} requests as above:",
            _table(found, "pending"),
            "The same with `list-compress-depth 1`, as [deploying](deploying.md#redis-on-a-server) "
            "recommends for Redis 7 and newer. Redis compresses a list except its ends (8 kB each).",
            _table(found, "compressed"),
            f"The same for {len(documentation_puts(shuffled=False)):,} real URLs of developer.mozilla.org, "
            "each with a Referer. *As it is*: not compressed; *shuffled*: in random order.",
            _table(found, "documentation"),
            "Bytes of Redis per fingerprint, with their number in brackets. *Expiring* means `DQ_SEEN_TTL`:",
            _table(found, "seen"),
            "Resident memory of the process after each step. In brackets: bytes per request that the step "
            f"adds. First, {IN_OUTBOX:,} requests fill the outbox. Then Redis has stored {HELD:,}, and the "
            "worker keeps their fingerprints and the newest requests (`DQ_ROLLBACK_HORIZON`). Last, "
            f"{FULL_BUFFER:,} leases fill the largest buffer. Scrapy's scheduler keeps all requests.",
            _held(found["held"]),
        ])  # fmt: skip

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw nothing, because the tables are short."""
        return []


def _table(found: dict[str, Any], what: str) -> str:
    names = list(max(found[what].values(), key=len))  # Redis 6.2 has fewer names

    def cell(size: Any) -> str:
        if size is None:
            return "–"
        return f"{size['bytes']:.1f} ({size['count']:,})" if what == "seen" else f"{size:.1f}"

    rows = [
        [found["redis"][kind], *(cell(sizes.get(name)) for name in names)]
        for kind, sizes in found[what].items()
    ]
    return markdown(["Redis", *names], rows)


def _held(found: dict[str, dict[str, int]]) -> str:
    steps = {"opened": 0, "outbox": IN_OUTBOX, "known": HELD - IN_OUTBOX, "buffer": FULL_BUFFER}
    rows = []
    for name, title in (("ours", "scrapy_dq"), ("memory", "Scrapy, in memory")):
        cells, before = [title], 0
        for step, count in steps.items():
            size = found[name].get(step)
            if size is None or (name == "memory" and step == "known"):
                cells.append("–")
                continue
            more = f" (+ {(size - before) / count:,.0f})" if count else ""
            cells.append(f"{size / MIB:.0f} MiB{more}")
            before = size
        rows.append(cells)
    head = ["scheduler", "opened", f"{IN_OUTBOX:,} enqueued at once", f"{HELD:,} enqueued", "full buffer"]
    return markdown(head, rows)


PART = Memory()
