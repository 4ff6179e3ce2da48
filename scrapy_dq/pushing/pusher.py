"""Puts requests that a person or a program has written as text into a crawl, as a worker would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_dq import scrapy_redis
from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import CannotEncode
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, frontiers_of, identity_of, options_of
from scrapy_dq.frontier.model import Admission, Identity
from scrapy_dq.frontier.moves import Put
from scrapy_dq.pushing.lines import BadLine, Line, Written
from scrapy_dq.pushing.producer import Producer
from scrapy_dq.scheduling.admission import entry_ids
from scrapy_dq.scheduling.due_times import BadDue, as_stored, due_of
from scrapy_dq.scheduling.dupefilter import shares_seen
from scrapy_dq.scheduling.partitions import BadPartition, partition_without_downloader
from scrapy_dq.settings import Config
from scrapy_dq.text import reason_of


@dataclass
class Pushed:
    """The results of one push."""

    requests: int = 0
    """Number of requests that were put, including requests that the crawl already knew."""
    known: int = 0
    bad: int = 0
    """Number of lines that are not a request."""
    run: int | None = None
    """The run of the puts; None if nothing was put."""
    disturbed: bool = False
    doubt: str = ""
    """See the attributes of `Producer` with these names."""

    @property
    def new(self) -> int:
        return max(0, self.requests - self.known)


@dataclass
class Pusher:
    """One push. After the end of `push`, even with an error, `pushed` has the results.

    Raises:
        ConfigError: the SCHEDULER_SERIALIZER does not work.
    """

    crawler: Crawler
    """A crawler with its spider and its fingerprinter, but without an engine."""
    config: Config
    common: Mapping[str, Any]
    """See `Written`."""
    spider: str
    """The name of the spider. Empty: the first worker of the run stores its spider's name."""
    bad: Callable[[str, str], object]
    """Called with the name of each line that is not a request, and the reason."""
    wake: Callable[[], object]
    """Called when the requests of a batch are stored."""
    durable: bool = True
    """End only after Redis has the requests on its disk."""
    pushed: Pushed = field(default_factory=Pushed)

    def __post_init__(self) -> None:
        self._codec = codec_of(self.config, self.crawler)
        self._written = Written(self._codec, self.common)
        assert self.crawler.request_fingerprinter is not None
        self._fingerprint = self.crawler.request_fingerprinter.fingerprint
        self._shares_seen = shares_seen(self.crawler)
        self._ids = entry_ids()

    def check(self) -> None:
        """Raise BadLine if the common attributes are invalid, such as a callback that the spider lacks."""
        scheme = next(iter(self.config.url_schemes), "http")
        request = self._written.request(Line("", f"{scheme}://localhost/".encode()))
        assert request is not None
        self._put_of(request)

    async def push(self, batches: AsyncIterator[Sequence[Line]], *, strict: bool = False) -> None:
        """Put the requests of all lines; each batch is stored before the next is read.

        If no run is open, a new run begins with the first line that is a request.

        Args:
            strict: stop at the first line that is not a request.
        Raises:
            ConfigError, FrontierError: the push was interrupted. The counted requests were stored.
        """
        connection = Connection(self.config, data_dir(self.config.data_dir))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(connection.close)
            await connection.open(quiet=True)
            producer = Producer(
                await frontiers_of(self.config, connection), self._identity(), options_of(self.config),
                connect=connection.another, dropped=self._known, durable=self.durable,
            )  # fmt: skip
            stack.callback(self._note, producer)
            await self._push(producer, stack, batches, strict)

    def _identity(self) -> Identity:
        # A push does not change the crawl's limits.
        found = replace(identity_of(self.config, self.crawler), limits=None)
        return found if self.spider else replace(found, spider="", spider_args="")

    def _note(self, producer: Producer) -> None:
        self.pushed.requests -= producer.unconfirmed
        self.pushed.disturbed = producer.disturbed
        self.pushed.doubt = producer.doubt

    async def _push(
        self, producer: Producer, stack: AsyncExitStack, batches: AsyncIterator[Sequence[Line]], strict: bool
    ) -> None:
        adopted = False
        async for batch in batches:
            for line in batch:
                try:
                    request = self._written.request(line)
                    put = request and self._put_of(request)
                except BadLine as error:
                    self.pushed.bad += 1
                    self.bad(line.name, str(error))
                    if strict:
                        break
                    continue
                if not (request and put):
                    continue
                if self.pushed.run is None:
                    adopted = (await stack.enter_async_context(producer.joined())).adopted
                    self.pushed.run = producer.run
                if adopted and put.admission is Admission.SEEN:
                    put.known_as = scrapy_redis.fingerprint(request)
                self.pushed.requests += 1
                await producer.put(put)
            if self.pushed.run is not None:
                await producer.hand_in()
                self.wake()
            if strict and self.pushed.bad:
                return

    def _put_of(self, request: Request) -> Put:
        if request.meta.get("dq_local"):
            raise BadLine("only a worker can have requests with dq_local")
        entry_id = next(self._ids)
        filtered = self._shares_seen and not request.dont_filter
        try:
            due = due_of(request, None, self.config.retry_backoff)
            partition = b""
            if self.config.partition_by == "slot":
                partition = partition_without_downloader(request)
            payload = self._codec.encode(as_stored(request))
            token = self._fingerprint(request) if filtered else entry_id
        except Exception as error:  # a project's own fingerprinter may raise anything
            raise BadLine(reason_of(error, BadDue, BadPartition, CannotEncode)) from error
        admission = Admission.SEEN if filtered else Admission.ID
        return Put(
            entry_id, admission, token, int(index(request.priority)), False, payload, partition=partition,
            due_at=due.at, not_before_s=due.not_before_s, once=not filtered,
        )  # fmt: skip

    def _known(self, put: Put) -> None:
        self.pushed.known += 1
