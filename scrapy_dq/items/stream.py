"""Items of workers on several hosts: a stream in Redis brings them into journals on one host.

A message is the name of a journal, a zero byte, and records (`crew/records.py`). The last record has the
number of the message. If an answer is lost, the worker repeats the message, and the collector drops the
repeat because of its number. Other programs may also write to the stream. So the collector checks the names
of journals, and accepts no record that is a pickle or names a module.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_dq.backend.cluster import tag_of
from scrapy_dq.backend.connection import Connection
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.journal import name_of
from scrapy_dq.crew.own_files import open_own
from scrapy_dq.crew.records import MAGIC, Kind, Packer, message, read, records_in
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, config_of
from scrapy_dq.filesystem import sync_folder
from scrapy_dq.frontier import keys
from scrapy_dq.items.writer import ItemNotStored, ItemWriter
from scrapy_dq.scheduling.engine_hooks import is_closing
from scrapy_dq.signals import crawl_joined, leases_ended
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
IN_REDIS = "redis"
"""The value of DQ_ITEMS with which workers send items to Redis."""
MAX_MESSAGES = 500
"""Maximum number of messages in one trip to Redis."""
MAX_MISSING = 1_000_000
"""Maximum number of messages of one worker that a rollback of Redis may have lost."""
_NAME = re.compile(r"[\w-]{1,64}\.[0-9]{9}\.[0-9]{20}\.000-[0-9a-f]{32}\.journal", re.ASCII)
_ALLOWED = {Kind.PACKED, Kind.END, Kind.VOID}


def key_of(crawl: str) -> str:
    """Return the key of the stream, in the crawl's slot. `clear` keeps the stream."""
    return f"{keys.PREFIX}items:{tag_of(keys.meta(crawl))}"


class ItemStream:
    """Sends items to Redis before their requests are acked, instead of to the feeds that all workers share.

    The add-on adds this Scrapy extension to each worker if DQ_ITEMS is redis.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._number = 0
        crawler.signals.connect(self._joined, crawl_joined)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Scrapy's hook.

        Raises:
            NotConfigured: DQ_ITEMS does not select Redis.
        """
        if crawler.settings["DQ_ITEMS"] != IN_REDIS:
            raise NotConfigured
        return cls(crawler)

    def _joined(self, epoch: str, run: int, over: bool, entry_of: Callable[[Response | None], bytes]) -> None:
        crawler = self._crawler
        exporter = crawler.get_extension(FeedExporter)
        if exporter is not None:
            # Source: scrapy/extensions/feedexport.py::FeedExporter.open_spider
            own = {uri: each for uri, each in exporter.feeds.items() if "(dq_worker)" in uri and not over}
            exporter.feeds = own
        if over:
            return
        config = config_of(crawler)
        self._entry_of = entry_of
        self._packer = Packer(codec_of(config, crawler), private=False)
        self._key = key_of(config.crawl)
        self._journal = name_of(Run(epoch, run), time.time_ns(), 0, uuid4().hex)
        self._writer = ItemWriter(
            Connection(config, data_dir(config.data_dir)), "stream",
            closing=lambda: is_closing(crawler), grace_s=config.shutdown_grace_s,
            horizon_s=config.rollback_horizon_s,
            given_up=lambda: "Their requests fail: `scrapy dq retry` brings the items again",
            counted=self._counted,
        )  # fmt: skip
        self._ends: set[asyncio.Task[None]] = set()
        # Scrapy waits for this handler before the request is done.
        crawler.signals.connect(self._keep, signals.item_scraped)
        crawler.signals.connect(self._ended, leases_ended)
        crawler.signals.connect(self._close, signals.engine_stopped)

    async def _keep(self, item: Any, response: Response | None, spider: Spider) -> None:
        entry_id = self._entry_of(response)
        try:
            await self._send(self._packer.item(entry_id, item))
        except (CrewError, ItemNotStored) as error:
            logger.error("An item is not stored in Redis: %s", error)
            # After this signal, the item's request fails, and a retry scrapes the item again.
            failure = Failure(error)  # type: ignore[no-untyped-call]
            self._crawler.signals.send_catch_log(
                signals.item_error, item=item, response=response, spider=spider, failure=failure
            )
        else:
            self._packer.stored(entry_id, item)

    def _ended(self, done: Iterable[bytes], others: Iterable[bytes]) -> None:
        if records := self._packer.ends(done, others):
            # If these records are lost, their entries count as not ended.
            task = asyncio.get_running_loop().create_task(self._send_ends(records))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _send_ends(self, records: bytes) -> None:
        with suppress(ItemNotStored):
            await self._send(records)

    async def _send(self, records: bytes) -> None:
        self._number += 1
        await self._writer.write(
            self._key, b"%s\0%s" % (self._journal.encode(), message(self._number, records))
        )

    async def _close(self) -> None:
        await asyncio.gather(*self._ends)
        await self._writer.close()

    def _counted(self, stored: int, failed: int) -> None:
        assert self._crawler.stats is not None
        for name, count in ((stats.ITEMS_STORED, stored), (stats.ITEMS_FAILED, failed)):
            if count:
                self._crawler.stats.inc_value(name, count)


class Collector:
    """Moves the messages of a crawl's stream into journals: each exactly once, even if the process is killed.

    Raises:
        CrewError: the journals of the crawl are in another folder, or on another host.
    """

    def __init__(self, client: Any, crawl: str, folder: Path) -> None:
        self._client = client
        self._key = key_of(crawl)
        self._folder = folder
        self._journals: dict[str, _Collected] = {}
        own, owner = f"{socket.gethostname()}:{folder}", f"{self._key}:folder"
        client.set(owner, own, nx=True)
        stored = client.get(owner).decode("utf-8", "replace")
        if stored != own:
            raise CrewError(
                f"the items of this crawl are collected in {printable(stored)}: run this there or, if that "
                f"folder is gone, delete the key {owner}"
            )

    def waiting(self) -> int:
        """Return how many messages are in Redis."""
        return int(self._client.xlen(self._key))

    def collect(self, passed: Callable[[int], None]) -> None:
        """Move all messages.

        CRASH at any line: a message may be in a journal and still in Redis. The next collector recognizes it
        by its number.

        Args:
            passed: called with the number of messages that a trip has moved.
        """
        while messages := self._client.xrange(self._key, count=MAX_MESSAGES):
            for number, fields in messages:
                if not self._add(fields.get(b"item", b"")):
                    logger.warning("%s: message %s is from no worker, and is dropped", self._key, number)
            for journal in self._journals.values():
                journal.sync()
            self._client.xdel(self._key, *(number for number, _ in messages))
            passed(len(messages))

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def _add(self, text: bytes) -> bool:
        name, _, records = text.partition(b"\0")
        found = list(records_in(io.BytesIO(records)))
        if not (_NAME.fullmatch(name.decode("ascii", "replace")) and len(found) > 1):
            return False
        *rest, last = found
        if sum(each.size for each in found) < len(records) or last.kind != Kind.MESSAGE:
            return False
        if not (last.data.isdigit() and {each.kind for each in rest} <= _ALLOWED):
            return False
        journal = self._journals.get(name.decode())
        if journal is None:
            journal = self._journals[name.decode()] = _Collected(self._folder / name.decode())
        return journal.add(int(last.data), records)


class _Collected:
    """A journal that consists of messages."""

    def __init__(self, path: Path) -> None:
        self._next = 1
        """One more than the highest number of a message in the journal.

        The journal has all messages with lower numbers, except `_missing`.
        """
        self._missing: set[int] = set()
        self._file: IO[bytes] = open(path, "ab", opener=open_own)  # noqa: SIM115  # `close` does
        whole = end = len(MAGIC) if self._file.tell() else 0
        for record in read(path):
            end += record.size
            if record.kind == Kind.MESSAGE:
                self._is_new(int(record.data))
                whole = end
        self._file.truncate(whole)  # a message that a kill has torn is still in Redis
        if not whole:
            self._file.write(MAGIC)
            sync_folder(path.parent)

    def add(self, number: int, records: bytes) -> bool:
        """Write a message, unless the journal has it; return False if its number is far too high."""
        if number > self._next + MAX_MISSING:
            return False
        if self._is_new(number):
            self._file.write(records)
        return True

    def sync(self) -> None:
        """Wait until all messages are on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _is_new(self, number: int) -> bool:
        if number >= self._next:
            # The worker repeats messages that a rollback of Redis has lost. They arrive after newer ones.
            self._missing.update(range(self._next, number))
            self._next = number + 1
            return True
        is_missing = number in self._missing
        self._missing.discard(number)
        return is_missing
