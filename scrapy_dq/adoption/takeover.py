"""Run a complete adoption, from a crawler's settings to the report."""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy_dq import scrapy_redis
from scrapy_dq.adoption import plain_pickle
from scrapy_dq.adoption.adopter import Adopter, AdoptionCounts, Progress
from scrapy_dq.adoption.jobdir import JobDir
from scrapy_dq.adoption.reader import CLEAR, Reader
from scrapy_dq.adoption.source import BadSource, Found, Source
from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import Codec
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, config_of, frontiers_of, identity_of, options_of
from scrapy_dq.pushing.producer import Producer
from scrapy_dq.scheduling.partitions import partition_without_downloader
from scrapy_dq.settings import Config, peers
from scrapy_dq.text import reason_of

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

_SAMPLE = 100
"""Maximum number of requests of a JOBDIR that are checked against the spider."""


@dataclass(frozen=True)
class Options:
    """The user's options of an adoption."""

    jobdir: str = ""
    """A folder of Scrapy's own scheduler; empty: a crawl of scrapy-redis is adopted."""
    trust_pickle: bool = False
    queue: str = ""
    """Order of a LIST or an SQLite queue, fifo or lifo; empty: as the settings say."""
    delete_source: bool = False


@dataclass
class Report:
    """The source, and the results."""

    target: str
    config: Config
    source: Source | JobDir
    counts: AdoptionCounts = field(default_factory=AdoptionCounts)
    changed: bool = False
    """The queue changed during the adoption."""
    disturbed: bool = False
    doubt: str = ""
    """Why Redis may lose the result; a sentence without a full stop."""
    deleted: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.source.queue.size or self.source.dupefilter.size)

    @property
    def complete(self) -> bool:
        return not (self.changed or self.disturbed)


async def take_over(
    crawler: Crawler, options: Options, progress: Progress, say: Callable[[str], None]
) -> Report:
    """Adopt the crawl of *crawler*'s spider; a repetition stores only missing requests and fingerprints.

    Args:
        crawler: with its spider and its fingerprinter; without an engine.
        say: called before the source is deleted, with a message that names the keys.
    Raises:
        BadSource, ConfigError, FrontierError: the source was not deleted, unless only the answer to the
            deletion was lost. Requests that were already adopted stay.
    """
    spider = crawler.spider
    assert spider is not None
    config = config_of(crawler)
    codec = codec_of(config, crawler)
    connection = Connection(config, data_dir(config.data_dir))
    try:
        client = await connection.open(quiet=True)
        source: Source | JobDir
        if options.jobdir:
            source = JobDir(options.jobdir, crawler.settings, options.queue)
            loads: Callable[[bytes], Any] = partial(_unpacked, max_bytes=config.max_entry_bytes)
        else:
            source = await _found(Source(client), crawler, options.queue)
            loads = _loads(source.queue, codec, config, options)
        report = Report(connection.target, config, source)
        if report.nothing:
            return report
        fingerprinter = crawler.request_fingerprinter
        assert fingerprinter is not None
        partition_of = partition_without_downloader if config.partition_by == "slot" else lambda _: b""
        # The key is not the path, because the folder may be moved before the next adoption.
        key = "jobdir" if options.jobdir else source.queue.key
        reader = Reader(
            key, loads, codec, fingerprinter.fingerprint, partition_of, config.max_entry_bytes,
            filters=not options.jobdir,
        )  # fmt: skip
        if isinstance(source, JobDir):
            await _refuse_another(source, reader, spider.name)
        producer = Producer(
            await frontiers_of(config, connection), identity_of(config, crawler), options_of(config),
            connect=connection.another, dropped=report.counts.add_known,
        )  # fmt: skip
        before = await source.mark()
        adopter = Adopter(producer, source, reader, progress, report.counts, config.worker_ttl_s)
        await adopter.adopt(config.order.newest_first())
        report.disturbed, report.doubt = producer.disturbed, producer.doubt
        report.changed = await source.mark() != before
        if options.delete_source and report.complete and not (report.doubt or report.counts.has_dead):
            assert isinstance(source, Source)  # the command refuses the option for a JOBDIR
            keys = [found.key for found in (source.queue, source.dupefilter) if found.size]
            say(f"Everything is stored. Deleting {' and '.join(map(repr, keys))}")
            await source.delete(keys)
            report.deleted = keys
        return report
    except (OSError, sqlite3.Error) as error:
        if not options.jobdir:
            raise
        raise BadSource(
            f"{options.jobdir!r} cannot be read ({error}). Requests that were already adopted stay"
        ) from error
    finally:
        await connection.close()


async def _refuse_another(jobdir: JobDir, reader: Reader, spider: str) -> None:
    """Refuse a JOBDIR whose first requests do not fit this spider or its fingerprinter."""
    reason, fit, filtered = "", 0, set[bytes]()
    async for members in jobdir.members(backwards=False):
        for member in members[:_SAMPLE]:
            try:
                request = reader.request_of(member)
                if not request.dont_filter:
                    filtered.add(reader.fingerprint(request))
                fit += 1
            except Exception as error:  # a fingerprinter may raise anything
                reason = reason or reason_of(error, *CLEAR)
        break
    if reason and not fit:
        raise BadSource(
            f"{str(jobdir.folder)!r} is not the JOBDIR of spider {spider!r}: none of its first requests fits "
            f"it ({reason}). Nothing was adopted"
        )
    if not filtered or not jobdir.dupefilter.size:
        return
    async for seen, _ in jobdir.fingerprints():
        if not filtered.isdisjoint(seen):
            return
    raise BadSource(
        f"{jobdir.dupefilter.key!r} contains no fingerprint of any of the first waiting requests: the "
        f"crawl used another REQUEST_FINGERPRINTER_CLASS or DUPEFILTER_CLASS. Use that crawl's class. "
        f"Nothing was adopted"
    )


def _unpacked(member: bytes, max_bytes: int) -> Any:
    """Read a record that Scrapy's disk queues pickled or marshalled, without looking up names in a pickle."""
    return plain_pickle.loads(member, max_bytes) if member[:1] == b"\x80" else marshal.loads(member)


async def _found(source: Source, crawler: Crawler, chosen: str) -> Source:
    spider, settings = crawler.spider, crawler.settings
    assert spider is not None
    names = ("SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY")
    await source.find(*(_key(settings, name, spider) for name in names))
    if source.queue.size:
        source.served = _served(source.queue, settings, chosen)
    return source


def _key(settings: Mapping[str, Any], setting: str, spider: Spider) -> str:
    try:
        return str(settings.get(setting) or scrapy_redis.DEFAULTS[setting]) % {"spider": spider.name}
    except (KeyError, TypeError, ValueError) as error:
        raise BadSource(
            f"{setting} = {settings.get(setting)!r}: expected the name of a key, in which %(spider)s stands "
            f"for the spider's name ({error})"
        ) from None


def _served(queue: Found, settings: Mapping[str, Any], chosen: str) -> str:
    """Return the order in which scrapy-redis served *queue*: priority, fifo or lifo."""
    if queue.type == "zset":
        if chosen:
            raise BadSource(
                f"the queue {queue.key!r} is a ZSET, which scrapy-redis's PriorityQueue uses; its order is "
                f"known, so omit --queue"
            )
        return "priority"
    order = peers.order_of_queue(settings)
    served = chosen or (order.value if order is not None else "")
    if served not in ("fifo", "lifo"):
        raise BadSource(
            f"the queue {queue.key!r} is a LIST, and {peers.QUEUE_CLASS} does not say how it was served: add "
            f"--queue fifo for scrapy-redis's FifoQueue (SpiderQueue), or --queue lifo for its LifoQueue "
            f"(SpiderStack)"
        )
    return served


def _loads(queue: Found, codec: Codec, config: Config, options: Options) -> Callable[[bytes], Any]:
    """Return the function that reads a member of the queue."""
    serializer = codec.serializer
    if serializer is not None:  # it is safe, or DQ_TRUST_PICKLE is set
        return serializer.loads
    if queue.size and not options.trust_pickle:
        raise BadSource(
            f"SCHEDULER_SERIALIZER is not set, so the {queue.size:,} requests in {queue.key!r} are taken to "
            f"be pickles. Nothing was changed. To read them, add --trust-pickle. They are read as plain data "
            f"only: a pickle that names a class or function becomes a dead letter"
        )
    return partial(plain_pickle.loads, max_bytes=config.max_entry_bytes)
