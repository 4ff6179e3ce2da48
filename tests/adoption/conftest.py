"""Fixtures of the adoption tests: a scrapy-redis crawl, filled by scrapy-redis itself, and its adoption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import msgpack
import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy_redis import queue as queues
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_dq.adoption.takeover import Options, Report, take_over
from scrapy_dq.factory import codec_of, config_of, frontier_of, identity_of
from scrapy_dq.frontier import Overview, keys, peek
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.model import Seeding
from scrapy_dq.frontier.wire import pack_moves
from scrapy_dq.frontier.worker.identity import new_worker_id, own_identity
from support.redis_server import RedisServer


class BookSpider(Spider):
    name = "books"

    def parse(self, response: Response, **kwargs: Any) -> Any: ...

    def parse_book(self, response: Response) -> Any: ...


class Progress:
    """A progress display that records the calls."""

    def __init__(self) -> None:
        self.shown: dict[str, list[int]] = {}
        self.said: list[str] = []
        self.while_under_way: Callable[[], object] = lambda: None

    def begin(self, what: str, total: int) -> None:
        self.shown[what] = [0, total]
        self._what = what

    def advance(self, count: int) -> None:
        self.shown[self._what][0] += count
        self.while_under_way()


class Case:
    """The crawl of one spider: scrapy-redis's keys and ours."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.client = redis.Redis.from_url(url)
        self.progress = Progress()
        self.queue_key, self.dupefilter_key = f"{name}:requests", f"{name}:dupefilter"

    def spider(self, **settings: Any) -> Spider:
        return self.crawler(**settings).spider  # type: ignore[return-value]

    def crawler(self, **settings: Any) -> Crawler:
        given = {"REDIS_URL": self.url, "DQ_PARTITION_BY": "none", "DQ_WORKER_TTL": 1} | settings
        crawler = Crawler(BookSpider, Settings(given))
        crawler.spider = BookSpider.from_crawler(crawler, name=self.name)
        crawler.request_fingerprinter = RequestFingerprinter(crawler)
        return crawler

    def theirs(self, queue: str, serializer: Any = None) -> Any:
        """Return scrapy-redis's queue of the class *queue*."""
        return getattr(queues, queue)(self.client, self.spider(), self.queue_key, serializer)

    def push(self, requests: Iterable[Request], queue: str = "PriorityQueue") -> Any:
        """Store *requests* as scrapy-redis's scheduler does, and return the queue."""
        theirs, filter_ = self.theirs(queue), RFPDupeFilter(self.client, self.dupefilter_key)
        for request in requests:
            if request.dont_filter or not filter_.request_seen(request):
                theirs.push(request)
        return theirs

    def add(self, *members: bytes) -> None:
        """Put *members* with any contents into the PriorityQueue."""
        for member in members:
            self.client.zadd(self.queue_key, {member: 0})

    def adopt(
        self,
        settings: dict[str, Any] | None = None,
        beside: Callable[[], object] | None = None,
        **options: Any,
    ) -> Report:
        """Adopt the crawl, by default with trusted pickles. Call *beside* repeatedly during the adoption."""
        chosen = Options(**{"trust_pickle": True} | options)
        crawler = self.crawler(**settings or {})

        async def repeat() -> None:
            while beside is not None:
                beside()
                await asyncio.sleep(0.02)

        async def adopt() -> Report:
            repeated = asyncio.create_task(repeat())
            try:
                return await take_over(crawler, chosen, self.progress, self.progress.said.append)
            finally:
                repeated.cancel()

        return asyncio.run(adopt())

    def beat(self) -> None:
        """Register a worker of another machine, and increase its heartbeat."""
        prefix = keys.prefix(self.name)
        self.client.sadd(prefix + "members", "elsewhere")
        self.client.hincrby(prefix + "beats", "elsewhere", 1)

    def serve(self, **settings: Any) -> list[Request]:
        """Join as a worker does, and return all requests in the order in which they are leased."""
        return asyncio.run(self._serve(self.crawler(**settings)))

    async def _serve(self, crawler: Crawler) -> list[Request]:
        config = config_of(crawler)
        client = redis.asyncio.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))
        frontier, codec = frontier_of(config, client), codec_of(config, crawler)
        worker_id = new_worker_id(own_identity())
        joined = await frontier.join(worker_id, own_identity(), uuid4().hex, identity_of(config, crawler))
        assert joined.resumed
        found: list[Request] = []
        seq = held = 0
        while True:
            seq += 1
            receipt = await frontier.exchange(
                Exchange(worker_id, joined.epoch, joined.run, seq, 1000, Seeding.ACTIVE, held, pack_moves([]))
            )
            if not receipt.leases:
                break
            held += len(receipt.leases)
            found += [codec.decode(lease.payload) for lease in receipt.leases]
        await frontier.leave(worker_id, joined.epoch, joined.run, False)
        await client.aclose()
        return found

    def look(self) -> Overview:
        return peek(self.client, self.name)

    def dead(self) -> dict[str, bytes]:
        """Return the payloads of all dead letters, by their reasons."""
        letters = self.client.hgetall(keys.prefix(self.name) + "dead").values()
        unpacked = (msgpack.unpackb(letter, raw=True) for letter in letters)
        return {letter[0].decode(): letter[5] for letter in unpacked}


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of one server. The kind of server makes no difference to an adoption."""
    with RedisServer(appendonly=True) as server:
        yield server.url


@pytest.fixture
def case(redis_url: str, crawl_name: str) -> Iterator[Case]:
    """Yield a crawl with a unique name."""
    case = Case(redis_url, crawl_name)
    yield case
    case.client.close()


def adopted(case: Case) -> int:
    return case.client.scard(f"{keys.prefix(case.name)}adopted")
