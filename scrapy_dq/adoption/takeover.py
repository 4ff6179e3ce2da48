"""A complete adoption: from a crawler's settings to the report."""

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
from scrapy_dq.adoption.reader import Reader, reason_of
from scrapy_dq.adoption.source import BadSource, Found, Source
from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import Codec
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, config_of, frontiers_of, identity_of, options_of
from scrapy_dq.scheduling.partitions import partition_without_downloader
from scrapy_dq.settings import Config, peers

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

_SAMPLE = 100
"""So many requests of a JOBDIR have to show whose it is."""


@dataclass(frozen=True)
class Options:
    """The user's options of an adoption."""

    jobdir: str = ""
    """A folder of Scrapy's own scheduler; empty: a crawl of scrapy-redis is adopted."""
    trust_pickle: bool = False
    queue: str = ""
    """How a LIST, or an SQLite queue, is served: fifo or lifo; empty: as the settings say."""
    queue_key: str = ""
    dupefilter_key: str = ""
    delete_source: bool = False


@dataclass
class Report:
    """What was found, and the results."""

    target: str
    config: Config
    queue: Found
    dupefilter: Found
    served: str = ""
    """How the other scheduler served its queue: priority, or an `Order`; empty: there is no queue."""
    counts: AdoptionCounts = field(default_factory=AdoptionCounts)
    changed: bool = False
    """The queue changed during the adoption."""
    disturbed: bool = False
    doubt: str = ""
    """Why it is not certain that Redis keeps it; a sentence without a full stop."""
    jobdir: JobDir | None = None
    """What was adopted; None: a crawl of scrapy-redis."""
    deleted: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.queue.size or self.dupefilter.size)

    @property
    def complete(self) -> bool:
        return not (self.changed or self.disturbed)


async def take_over(
    crawler: Crawler, options: Options, progress: Progress, say: Callable[[str], None]
) -> Report:
    """Adopt the crawl of *crawler*'s spider; doing it again stores only what is missing.

    Args:
        crawler: with its spider and its fingerprinter; without an engine.
        say: called before the source is deleted, with a message that names the keys.
    Raises:
        BadSource, ConfigError, FrontierError: nothing was deleted; what was adopted until then stays.
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
            source = jobdir = JobDir(options.jobdir, crawler.settings, options.queue)
            report = Report(connection.target, config, jobdir.requests, jobdir.seen, jobdir=jobdir)
            report.served = jobdir.served and f"priority-{jobdir.served}"
            loads: Callable[[bytes], Any] = partial(_unpacked, max_bytes=config.max_entry_bytes)
        else:
            source = peers = Source(client)
            report = await _look(peers, connection.target, config, crawler, options)
            loads = _loads(report, codec, options)
        if report.nothing:
            return report
        fingerprinter = crawler.request_fingerprinter
        assert fingerprinter is not None
        partition_of = partition_without_downloader if config.partition_by == "slot" else lambda _: b""
        fingerprint = fingerprinter.fingerprint
        # Not the path: the folder may have another one when it is adopted again.
        key = "jobdir" if options.jobdir else report.queue.key
        reader = Reader(
            key, loads, codec, fingerprint, partition_of, config.max_entry_bytes, filters=not options.jobdir
        )
        if options.jobdir:
            await _refuse_another(jobdir, reader, fingerprint, spider.name)
        adopter = Adopter(
            await frontiers_of(config, connection),
            identity_of(config, crawler),
            source,
            progress,
            connect=connection.another,
            options=options_of(config),
        )
        report.counts = adopter.counts
        before = await source.mark(report.queue)
        async with adopter.joined():
            await adopter.adopt_fingerprints(report.dupefilter, scrapys=bool(options.jobdir))
            await adopter.adopt_requests(
                report.queue,
                reader,
                tail_first=report.served == "fifo",
                newest_first=config.order.newest_first(),
            )
        report.disturbed, report.doubt = adopter.producer.disturbed, adopter.producer.doubt
        report.changed = await source.mark(report.queue) != before
        if options.delete_source and report.complete and not (report.doubt or report.counts.has_dead):
            keys = [found.key for found in (report.queue, report.dupefilter) if found.size]
            say(f"Everything is stored. Deleting {' and '.join(map(repr, keys))}")
            await peers.delete(keys)
            report.deleted = keys
        return report
    except (OSError, sqlite3.Error) as error:
        if not options.jobdir:
            raise
        raise BadSource(
            f"{options.jobdir!r} cannot be read any more ({error}). What was adopted until now stays"
        ) from error
    finally:
        await connection.close()


async def _refuse_another(
    jobdir: JobDir, reader: Reader, fingerprint: Callable[[Request], bytes], spider: str
) -> None:
    """Refuse a JOBDIR none of whose first requests fits this spider, or its fingerprinter."""
    reason, fit, filtered = "", 0, set[bytes]()
    async for members in jobdir.members(jobdir.requests, tail_first=False, backwards=False):
        for member in members[:_SAMPLE]:
            try:
                request = reader.request_of(member)
                if not request.dont_filter:
                    filtered.add(fingerprint(request))
                fit += 1
            except Exception as error:  # a fingerprinter may raise anything
                reason = reason or reason_of(error)
        break
    if reason and not fit:
        raise BadSource(
            f"{str(jobdir.folder)!r} is not the JOBDIR of spider {spider!r}: none of its first requests fits "
            f"it ({reason}). Nothing was adopted"
        )
    if filtered and jobdir.seen.size and not jobdir.has_some_of(filtered):
        raise BadSource(
            f"{jobdir.seen.key!r} has no fingerprint of the first requests that wait: it was written "
            f"with another REQUEST_FINGERPRINTER_CLASS, or DUPEFILTER_CLASS. Set that of the crawl. Nothing "
            f"was adopted"
        )


def _unpacked(member: bytes, max_bytes: int) -> Any:
    """Return what Scrapy's disk queues have pickled or marshalled; what a pickle names is not looked up."""
    return plain_pickle.loads(member, max_bytes) if member[:1] == b"\x80" else marshal.loads(member)


async def _look(source: Source, target: str, config: Config, crawler: Crawler, options: Options) -> Report:
    spider, settings = crawler.spider, crawler.settings
    assert spider is not None
    queue_key = options.queue_key or _key(settings, "SCHEDULER_QUEUE_KEY", spider)
    dupefilter_key = options.dupefilter_key or _key(settings, "SCHEDULER_DUPEFILTER_KEY", spider)
    report = Report(
        target,
        config,
        await source.look(queue_key, "zset", "list"),
        await source.look(dupefilter_key, "set"),
    )
    for named, found in ((options.queue_key, report.queue), (options.dupefilter_key, report.dupefilter)):
        if named and not found.size:
            raise BadSource(f"there is no key {named!r} at {target}: nothing was changed")
    if report.queue.size:
        report.served = _served(report.queue, settings, options.queue)
    return report


def _key(settings: Mapping[str, Any], setting: str, spider: Spider) -> str:
    try:
        return str(settings.get(setting) or scrapy_redis.DEFAULTS[setting]) % {"spider": spider.name}
    except (KeyError, TypeError, ValueError) as error:
        raise BadSource(
            f"{setting} = {settings.get(setting)!r}: expected a key's name, with %(spider)s for the spider's "
            f"({error})"
        ) from None


def _served(queue: Found, settings: Mapping[str, Any], chosen: str) -> str:
    """Return how scrapy-redis served *queue*: priority, fifo or lifo."""
    if queue.type == "zset":
        if chosen:
            raise BadSource(f"the queue {queue.key!r} is a ZSET, as PriorityQueue has it: omit --queue")
        return "priority"
    order = peers.order_of_queue(settings)
    served = chosen or (order.value if order is not None else "")
    if served not in ("fifo", "lifo"):
        cls = settings.get(peers.QUEUE_CLASS)
        given = (
            f"{peers.QUEUE_CLASS} = {peers.name_of(cls)} does not say"
            if cls
            else f"no {peers.QUEUE_CLASS} says"
        )
        raise BadSource(
            f"the queue {queue.key!r} is a LIST, and {given} how it was served: add --queue fifo for "
            f"scrapy-redis's FifoQueue (SpiderQueue), or --queue lifo for its LifoQueue (SpiderStack)"
        )
    return served


def _loads(report: Report, codec: Codec, options: Options) -> Callable[[bytes], Any]:
    """Return what reads a member of the queue."""
    serializer = codec.serializer
    if serializer is not None:  # it is safe, or DQ_TRUST_PICKLE is set
        return serializer.loads
    if report.queue.size and not options.trust_pickle:
        raise BadSource(
            f"the {report.queue.size:,} requests in {report.queue.key!r} are pickles, unless "
            f"SCHEDULER_SERIALIZER says otherwise. A pickle can hold code, and anybody who can write to this "
            f"Redis could have put one there. Nothing was changed. Add --trust-pickle to read them: as plain "
            f"data only; a pickle that names a class or function becomes a dead letter"
        )
    return partial(plain_pickle.loads, max_bytes=report.config.max_entry_bytes)
