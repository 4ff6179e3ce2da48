"""The bytes of an export, and the data that an import stores, stay the same in all versions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import msgpack
import pytest

from scrapy_dq.exports.lines import part_line, part_of
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import header_of
from scrapy_dq.frontier.archive.load import load
from scrapy_dq.frontier.archive.parts import Header, Part, Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Order, Seen
from support.redis_server import RedisServer
from support.sharded_crawl import Crawl

pytestmark = pytest.mark.usefixtures("_quick_disks")
BIAS = 2**52
IDS = [b"entry-%06d" % n for n in range(20)]
HOST = b"a.example"
DUE = 1_700_000_000_000
RANKS = {order: [0] if order in (Order.FIFO, Order.LIFO) else [-8, 1, 2] for order in Order}
"""Ranks of priority 2, and of start requests with the oldest or the newest first."""


def eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Bytes:
    """The stored forms of entries of a crawl with this order, built without scrapy_dq's code."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def turn(self, rank: int, sequence: int) -> bytes:
        newest_first = {
            Order.FIFO: False, Order.LIFO: True, Order.PRIORITY_FIFO: rank == 2,
            Order.PRIORITY_LIFO: rank != 1,
        }[self.order]  # fmt: skip
        return eight(BIAS - sequence if newest_first else sequence)

    def place(self, rank: int, sequence: int) -> bytes:
        return eight(rank + BIAS) + self.turn(rank, sequence)

    def element(self, rank: int, n: int) -> bytes:
        return self.turn(rank, n) + IDS[n] + b"payload %d" % n

    def member(self, rank: int, n: int, attempts: int) -> bytes:
        return HOST + b"\0" + self.place(rank, n) + IDS[n] + bytes((attempts,)) + b"payload %d" % n

    def lease(self, rank: int, n: int, flags: int, mark: bytes = b"") -> bytes:
        return eight(rank + BIAS) + bytes((flags,)) + mark + HOST + b"\0" + self.element(rank, n)

    def delayed(self, rank: int, n: int) -> bytes:
        return IDS[n] + eight(rank + BIAS) + HOST + b"\0payload %d" % n

    def ended(self, rank: int, n: int, *first: bytes) -> bytes:
        fields = [*first, b"odd \xff", DUE + n, b"host-1", 3, self.place(rank, n), b"payload %d" % n, HOST]
        return bytes(msgpack.packb(fields, use_bin_type=False))


def expected(rank: int, order: Order) -> list[str]:
    """Return the lines of an export, with ids and payloads in base64, built without scrapy_dq's code."""
    ids = ["ZW50cnktMDAwMDAw", *(f"ZW50cnktMDAwMD{pair}" for pair in ("Ax", "Ay", "Az", "A0", "A1", "A2"))]
    ids += [f"ZW50cnktMDAwMD{pair}" for pair in ("A3", "A4", "A5", "Ew", "Ex", "Ey")]
    payloads = [f"cGF5bG9hZC{end}" for end in ("Aw", "Ax", "Ay", "Az", "A0", "A1", "A2", "A3", "A4", "A5")]
    payloads += [f"cGF5bG9hZCAx{end}" for end in ("MA==", "MQ==", "Mg==")]
    waiting = [(each, n, ids[n], payloads[n]) for n, each in enumerate(RANKS[order])]

    def came_back(n: int, attempts: int) -> list[Any]:
        return ["a.example", rank, n, ids[n], attempts, payloads[n]]

    ended = ["odd \udcff", "host-1", 3, rank]
    lines: list[dict[str, Any]] = [
        {"limits": [["a.example", "500:2"]]},
        {"blocked": [[DUE, "a.example"]]},
        {"waiting": waiting, "partition": "a.example"},
        {"waiting": [(RANKS[order][0], 11, ids[11], payloads[11])], "partition": "b.example"},
        {"returned": [came_back(3, 0), came_back(4, 2), came_back(5, 1)]},
        {"quarantine": [came_back(6, 3), came_back(7, 4)]},
        {"delayed": [[DUE, rank, "a.example", ids[8], payloads[8]]]},
        {"failed": [[ids[9], "http://a/9", ended[0], DUE + 9, *ended[1:], 9, payloads[9], "a.example"]]},
        {"dead": [[ids[10], ended[0], DUE + 10, *ended[1:], 10, payloads[10], "a.example"]]},
    ]
    return [json.dumps(line, separators=(",", ":")) for line in lines]


@pytest.fixture
def crawls(redis_server: RedisServer, crawl_name: str) -> Iterator[Any]:
    made: list[Crawl] = []

    def crawl(order: Order, name: str) -> Crawl:
        made.append(Crawl(redis_server.url, f"{crawl_name}-{name}", Seen.EXACT, True, order))
        return made[-1]

    yield crawl
    for each in made:
        with closing(each):
            pass


def written(crawl: Crawl, order: Order) -> dict[str, Any]:
    """Write each stored form into a crawl. Return the values that an import must store, by key."""
    raw, ranks, prefix, redis = Bytes(order), RANKS[order], keys.prefix(crawl.name), crawl.redis
    rank = ranks[-1]
    crawl.join(1)
    crawl.put()
    crawl.leave()
    for name in redis.scan_iter(prefix.replace("*", "\\*") + "*"):
        if not name.endswith(b":meta"):
            redis.delete(name)
    lists = {f"backlog:{each}:{HOST.decode()}": [raw.element(each, n)] for n, each in enumerate(ranks)}
    lists[f"backlog:{ranks[0]}:b.example"] = [raw.element(ranks[0], 11)]
    for name, elements in lists.items():
        redis.rpush(prefix + name, *elements)
    redis.hset(prefix + "bands", mapping=dict.fromkeys((HOST, b"b.example"), eight(ranks[0] + BIAS)))
    for each in ranks[1:]:
        redis.zadd(prefix + "more_bands", {HOST + b"\0" + eight(each + BIAS): 0})
    redis.zadd(prefix + "returned", {raw.member(rank, 3, 0): 0})
    redis.zadd(prefix + "declined", {raw.member(rank, 4, 130): 7})
    redis.zadd(prefix + "quarantine", {raw.member(rank, 6, 3): 0})
    redis.sadd(prefix + "members", "w")
    leases = {IDS[5]: raw.lease(rank, 5, 1, b"\2"), IDS[7]: raw.lease(rank, 7, 132)}
    redis.hset(prefix + "in-flight:w", mapping=leases)
    redis.zadd(prefix + "delayed", {raw.delayed(rank, 8): DUE})
    failed, dead = raw.ended(rank, 9, IDS[9], b"http://a/9"), raw.ended(rank, 10)
    redis.rpush(prefix + "failed", failed)
    redis.hset(prefix + "dead", IDS[10], dead)
    redis.hset(prefix + "limits", HOST, "500:2")
    redis.zadd(prefix + "blocked", {HOST: DUE})
    returned = {raw.member(rank, n, attempts) for n, attempts in ((3, 0), (4, 2), (5, 1))}
    quarantine = {raw.member(rank, n, attempts) for n, attempts in ((6, 3), (7, 4))}
    return {
        **lists, "returned": returned, "quarantine": quarantine, "failed": [failed], "dead": {IDS[10]: dead},
        "delayed": {(raw.delayed(rank, 8), float(DUE))}, "limits": {HOST: b"500:2"},
    }  # fmt: skip


def found_in(crawl: Crawl, names: list[str]) -> dict[str, Any]:
    prefix, redis, found = keys.prefix(crawl.name), crawl.redis, dict[str, Any]()
    for name in names:
        if name in ("dead", "limits"):
            found[name] = redis.hgetall(prefix + name)
        elif name == "failed" or name.startswith("backlog:"):
            found[name] = redis.lrange(prefix + name, 0, -1)
        else:
            scored = redis.zrange(prefix + name, 0, -1, withscores=True)
            found[name] = set(scored if name == "delayed" else (member for member, _ in scored))
    return found


@pytest.mark.parametrize("order", list(Order))
def test_each_stored_form_is_exported_and_imported_unchanged(crawls: Any, order: Order) -> None:
    """The lines equal the expected lines, and an import of them stores the same data in Redis."""
    old, new = crawls(order, "old"), crawls(order, "new")
    stored = written(old, order)

    async def read(frontiers: list[Frontier]) -> tuple[Header, list[str]]:
        header = await header_of(frontiers[:1])
        return header, [part_line(part, header.seen) async for part in dump(frontiers[:1], header)]

    header, lines = old.with_frontiers(read)
    assert lines == expected(RANKS[order][-1], order)

    async def parts() -> AsyncIterator[Part]:
        for line in lines:
            yield part_of(json.loads(line), header)

    async def store(frontiers: list[Frontier]) -> None:
        await load(frontiers[:1], header, parts(), Shape(order, Seen.EXACT, 1), priority_of=int)

    new.with_frontiers(store)
    assert found_in(new, list(stored)) == stored
