"""Valid, damaged and invented entries, as untrusted programs could write them, and their results."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
from msgpack import ExtType
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.codec import FORMAT, Codec
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Identity
from support.fault_crawl import FaultCrawl
from support.live_frontier import HandWorker, LiveFrontier, put
from support.worker import Worker

CLASS, URL, CALLBACK, ERRBACK, HEADERS, META = 0, 1, 2, 3, 5, 8
BATCH = 200  # entries in one exchange
OBJECT = 5
"""The msgpack extension for an instance of a class."""


class _Spider(Spider):
    name = "hostile"


def entry(fields: Any) -> bytes:
    """Return an entry with *fields*, which may be invalid."""
    return bytes((FORMAT,)) + msgpack.packb(fields, unicode_errors="surrogatepass")


def instance(name: str, state: Any) -> ExtType:
    """Return the stored form of an instance of the class *name* ("module:QualName")."""
    return ExtType(OBJECT, msgpack.packb([name, state]))


def good(urls: Sequence[str]) -> list[bytes]:
    """Return an entry for each of *urls* with values of every type that an entry may hold."""
    spider = _Spider()
    codec = Codec(spider)
    values = {
        "depth": 3,
        "text": ["é", "\ud800", b"\0\xff", None, True, 1.5, 2**70],
        "sets": ({1, 2}, frozenset({"a"}), bytearray(b"x")),
        "time": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "others": {"d": Decimal("1.5"), "u": UUID(int=7), "p": Path("a/b")},
    }
    makers: list[Callable[[str], Request]] = [
        lambda url: Request(url, spider.parse),
        lambda url: Request(url, spider.parse, meta=values, priority=-3, dont_filter=True),
        lambda url: Request(url, spider.parse, "PUT", {"A": ["b", "c"]}, b"body", {"a": "b"}, flags=["f"]),
        lambda url: Request(url, cookies=[{"name": "n", "value": "v"}], cb_kwargs=values, encoding="latin-1"),
        lambda url: JsonRequest(url, data={"a": [1, 2]}, callback=spider.parse),
        lambda url: FormRequest(url, formdata={"a": "1"}, callback=spider.parse),
    ]
    return [codec.encode(makers[number % len(makers)](url)) for number, url in enumerate(urls)]


def corrupted(samples: Sequence[bytes], count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield *count* entries: samples with a few changed bits or bytes, and invented entries."""
    ways = ["overwrite", "truncate", "splice", "insert", "remove"] + ["make up"] * 2 + ["flip"] * 3
    for _ in range(count):
        way, data, other = rng.choice(ways), bytearray(rng.choice(samples)), rng.choice(samples)
        at = rng.randrange(1, len(data))
        if way == "flip":
            for _ in range(rng.choice((1, 1, 2, 8))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif way == "overwrite":
            data[at : at + rng.randint(1, 4)] = rng.randbytes(rng.randint(1, 4))
        elif way == "truncate":
            del data[at:]
        elif way == "splice":
            data[at:] = other[rng.randrange(len(other)) :]
        elif way == "insert":
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif way == "remove":
            del data[at : at + rng.randint(1, 8)]
        yield _made_up(data, rng) if way == "make up" else bytes(data)


def _made_up(data: bytearray, rng: random.Random) -> bytes:
    """Return an entry with the fields of a good one, some of them replaced at random."""
    fields = msgpack.unpackb(bytes(data[1:]), strict_map_key=False, unicode_errors="surrogatepass")
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            fields[META] = {"x": anything(rng, 4)}
        else:
            fields[rng.randrange(16)] = anything(rng, 4)
    return entry(fields if rng.random() < 0.9 else anything(rng, 4))


def anything(rng: random.Random, depth: int) -> Any:
    """Return a random value that msgpack can pack, nested up to *depth*."""
    scalars: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((0, 1, -1, 2**32, 2**63, -(2**63), rng.getrandbits(16))),
        lambda: rng.choice((0.0, float("nan"), float("inf"), -1.5)),
        lambda: rng.choice(("", "parse", "__init__", "http://127.0.0.1/", "utf-8", "os:system", "é\ud800")),
        lambda: rng.randbytes(rng.randrange(12)),
    ]
    nested: list[Callable[[], Any]] = [
        lambda: [anything(rng, depth - 1) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(scalars)(): anything(rng, depth - 1) for _ in range(rng.randrange(4))},
        lambda: ExtType(
            rng.randrange(20), msgpack.packb(anything(rng, depth - 1), unicode_errors="surrogatepass")
        ),
    ]
    return rng.choice(scalars + nested * 2 if depth else scalars)()


def store(crawl: FaultCrawl, payloads: Sequence[bytes]) -> None:
    """Put *payloads* into the backlog, as any program with access to Redis could do."""
    identity = Identity(
        "scrapy.utils.request.RequestFingerprinter", "tree_project.spiders.spider.ProjectSpider", "{}",
        partition_by="slot",
    )  # fmt: skip
    with closing(LiveFrontier(crawl.redis_url, crawl.project.name)) as live:
        stranger = HandWorker(live, "stranger", identity)
        for first in range(0, len(payloads), BATCH):
            batch = payloads[first : first + BATCH]
            stranger.exchange(*(put(n, payload=p) for n, p in enumerate(batch, first)), seeding=1)
        stranger.leave()
        # LiveFrontier.close() deletes the crawl, so save it here and restore it below.
        snapshot = live.dump()
    with connect_url(crawl.redis_url) as client:
        for name, value in snapshot.items():
            client.restore(name, 0, value)


def dead_letters(crawl: FaultCrawl) -> Counter[str]:
    """Return the number of dead letters by reason."""
    with connect_url(crawl.redis_url) as client:
        letters = client.hgetall(keys.prefix(crawl.project.name) + "dead").values()
    return Counter(msgpack.unpackb(letter, raw=True)[0].decode() for letter in letters)


def errors(worker: Worker) -> list[str]:
    """Return the first lines of errors and tracebacks in the log.

    Errors of tldextract are excluded, because CookiesMiddleware lets it fetch a list if there is a network.
    """
    records = re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[)", worker.text, flags=re.MULTILINE)
    bad = [
        record for record in records if "Traceback" in record or re.match(r"\S+ \S+ \S+ (ERR|CRIT)", record)
    ]
    lines = [record.split(" ", 2)[2][:300] for record in bad]
    return [record for record in lines if not record.startswith("[tldextract]")]
