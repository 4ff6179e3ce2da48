"""The measured request. It has a URL of 100 bytes, a callback, `depth` and one header."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import Codec
from scrapy_dq.frontier.model import Admission
from scrapy_dq.frontier.moves import Put
from scrapy_dq.scheduling.admission import entry_ids

DOCUMENTATION = Path(__file__).with_name("documentation_urls.txt.gz")
"""Pages of developer.mozilla.org: each `mdn_url` of the npm package @mdn/browser-compat-data 8.1.9 (CC0)."""
PER_PAGE = 13
HOST = "www.example.com"
URL_BYTES = 100


class SampleSpider(Spider):
    """The spider of the measured requests."""

    name = "sample"

    def parse_page(self, response: Any) -> None:
        """Serve as the callback of the requests. It is never called."""


def url(n: int) -> str:
    """Return the URL of request number *n*."""
    return f"https://{HOST}/catalogue/{n:010d}/".ljust(URL_BYTES, "a")


def request(n: int, spider: SampleSpider) -> Request:
    """Return request number *n*, as a callback yields it."""
    headers = {"Referer": f"https://{HOST}/"}
    return Request(url(n), spider.parse_page, headers=headers, meta={"depth": 3})


def frame(whole: bytes, its_url: str) -> tuple[bytes, bytes]:
    """Return the parts of a stored request before and after its URL."""
    before, found, after = whole.partition(its_url.encode())
    if not found:
        raise RuntimeError("the stored request does not contain the unchanged URL")
    return before, after


def token(n: int) -> bytes:
    """Return a token for request number *n*, as random as a fingerprint."""
    return blake2b(n.to_bytes(8, "big"), digest_size=20).digest()


def puts(numbers: Iterable[int], partitions: int = 1) -> Iterator[Put]:
    """Yield puts of the requests with these numbers, spread evenly over the partitions."""
    names = [b"%s-%06d" % (HOST.encode(), k) if k else HOST.encode() for k in range(partitions)]
    spider = SampleSpider()
    before, after = frame(Codec(spider).encode(request(0, spider)), url(0))
    for n in numbers:
        payload = before + url(n).encode() + after
        partition = names[n % partitions]
        yield Put(b"%012d" % n, Admission.SEEN, token(n), 0, False, payload, partition=partition)


def documentation_puts(*, shuffled: bool) -> list[Put]:
    """Return puts of the pages of a real documentation site, in its order or shuffled.

    Each page yields PER_PAGE further pages, whose Referer header names it.
    """
    urls = gzip.decompress(DOCUMENTATION.read_bytes()).decode().split()
    if shuffled:
        Random(0).shuffle(urls)
    spider, ids, puts = SampleSpider(), entry_ids(), []
    codec = Codec(spider)
    for n, each in enumerate(urls):
        headers = {"Referer": urls[n // PER_PAGE]}
        payload = codec.encode(Request(each, spider.parse_page, headers=headers, meta={"depth": 3}))
        puts.append(Put(next(ids), Admission.SEEN, token(n), 0, False, payload, partition=b""))
    return puts
