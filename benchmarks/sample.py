"""The request that is measured: a URL of 100 bytes, a callback, `depth` and one header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import Codec
from scrapy_dq.frontier.model import Admission, Put

HOST = "www.example.com"
URL_BYTES = 100


class SampleSpider(Spider):
    """Whose requests these are."""

    name = "sample"

    def parse_page(self, response: Any) -> None:
        """Be named as a callback; no response ever comes."""


def url(n: int) -> str:
    """Return the URL of request number *n*."""
    return f"https://{HOST}/catalogue/{n:010d}/".ljust(URL_BYTES, "a")


def request(n: int, spider: SampleSpider) -> Request:
    """Return request number *n*, as a callback yields it."""
    headers = {"Referer": f"https://{HOST}/"}
    return Request(url(n), spider.parse_page, headers=headers, meta={"depth": 3})


def payloads(numbers: Iterable[int]) -> Iterator[bytes]:
    """Yield what is stored of these requests, quicker than by encoding each."""
    spider = SampleSpider()
    first = Codec(spider).encode(request(0, spider))
    assert first.count(url(0).encode()) == 1
    head, tail = first.split(url(0).encode())
    for n in numbers:
        yield head + url(n).encode() + tail


def token(n: int) -> bytes:
    """Return what may be the fingerprint of request number *n*: as random as one."""
    return blake2b(n.to_bytes(8, "big"), digest_size=20).digest()


def puts(numbers: Iterable[int], partitions: int = 1) -> Iterator[Put]:
    """Yield puts of these requests; those of several partitions are dealt out to them in turn."""
    names = [b"%s-%06d" % (HOST.encode(), k) if k else HOST.encode() for k in range(partitions)]
    numbers = list(numbers)
    for n, payload in zip(numbers, payloads(numbers), strict=True):
        yield Put(
            b"%012d" % n, Admission.SEEN, token(n), 0, False, payload, partition=names[n % partitions]
        )  # fmt: skip
