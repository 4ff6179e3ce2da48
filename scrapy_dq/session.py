"""One worker's life in a crawl: from the settings to the last exchange."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from scrapy import signals
from scrapy.exceptions import DontCloseSpider

from scrapy_dq import stats
from scrapy_dq.assembly import codec_of, config_of, frontier_of, identity_of, options_of
from scrapy_dq.connection import Connection
from scrapy_dq.crew.member import own_member
from scrapy_dq.dupefilter import DupeFilter, dupefilter_of
from scrapy_dq.frontier.flush import flush
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import Census, FrontierError, Hold, Joined, Put, Status, Words
from scrapy_dq.frontier.worker import Worker
from scrapy_dq.listening import Listening
from scrapy_dq.retry_after import RetryAfter
from scrapy_dq.settings import Config, ConfigError, peers
from scrapy_dq.settlement import Outcome, Settlement, UnsupportedScrapy
from scrapy_dq.shared_stats import SharedStats
from scrapy_dq.slots import OneSlot, Slots
from scrapy_dq.spiders import RedisMixin
from scrapy_dq.start_keys import patience_s, start_keys_of
from scrapy_dq.stats_sharing import StatsSharing
from scrapy_dq.surroundings import data_dir, differing, need_asyncio

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

logger = logging.getLogger(__name__)
NO_LIMIT = 100
"""Leases at a time when CONCURRENT_REQUESTS is 0."""
_WITHOUT_EFFECT = (
    "JOBDIR",
    "SCHEDULER_DISK_QUEUE",
    "SCHEDULER_MEMORY_QUEUE",
    "SCHEDULER_PRIORITY_QUEUE",
    "SCHEDULER_START_DISK_QUEUE",
    "SCHEDULER_START_MEMORY_QUEUE",
)
_COUNTERS = {
    "exchange": stats.EXCHANGES,
    "seconds": stats.EXCHANGE_SECONDS,
    "error": stats.REDIS_ERRORS,
    "rejoin": stats.REJOINS,
    "reclaim": stats.RECLAIMED,
    "ack": stats.ACKED,
    "release": stats.RELEASED,
    "bury": stats.BURIED,
    "fail": stats.FAILED,
}


_HOLDS = {
    Hold.NONE: "resumed",
    Hold.PAUSED: "paused; nothing is sent until somebody says `scrapy dq resume`",
    Hold.DRAINING: "draining; what is leased is finished, and no more until somebody says `scrapy dq resume`",
}


class Settler(Protocol):
    """The scheduler, as a session sees it."""

    def settled(self, request: Request, outcome: Outcome, reason: str) -> None: ...
    def downloaded(self, request: Request) -> None: ...
    def release_unfinished(self) -> None: ...
    def put_dropped(self, put: Put) -> None: ...
    def forget_sent(self) -> None: ...


class Session:
    """Connects a crawler to its frontier, and is the listener of its worker."""

    worker: Worker
    settlement: Settlement
    slots: Slots | OneSlot
    listening: Listening

    def __init__(self, crawler: Crawler, config: Config, dupefilter: BaseDupeFilter) -> None:
        assert crawler.spider is not None
        assert crawler.stats is not None
        settings = crawler.settings
        self.config = config
        self.opened = False
        self.debug = settings.getbool("SCHEDULER_DEBUG")
        self.shares_seen = isinstance(dupefilter, DupeFilter)
        self._dupefilter = dupefilter
        self._crawler = crawler
        self._stats = crawler.stats
        self._start_keys = start_keys_of(crawler.spider, config)
        self._patience_s = patience_s(crawler.spider, config)
        self._concurrency = settings.getint("CONCURRENT_REQUESTS") or NO_LIMIT
        self._connection = Connection(config, data_dir())
        self._grace: asyncio.TimerHandle | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._sharing: StatsSharing | None = None
        self.codec = codec_of(config, crawler)
        self.adopted = False
        """A crawl of scrapy-redis was adopted: what it had seen is not crawled again."""
        self.paused = False
        """All workers were told to pause: nothing is handed to the engine, what is local neither."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Session:
        """Check settings and reactor.

        Raises:
            ConfigError: after one ERROR line.
        """
        try:
            need_asyncio()
            config = config_of(crawler)
            _mention_settings_without_effect(crawler, config)
            for level, remark in peers.remarks(crawler.settings, config.order):
                logger.log(level, "%s", remark)
            return cls(crawler, config, dupefilter_of(crawler))
        except ConfigError as error:
            logger.error("scrapy_dq cannot start: %s", error)
            raise

    async def open(self, scheduler: Settler) -> None:
        """Connect, flush if asked to, and join.

        Raises:
            FrontierError, ConfigError, UnsupportedScrapy: after one ERROR line; nothing in Redis was changed.
        """
        self._scheduler = scheduler
        where = ""
        if crew := own_member():
            crew.enter(self._crawler, self.config.shutdown_grace_s)
        try:
            self.settlement = Settlement(self._crawler, scheduler.settled, scheduler.downloaded)
            self.slots = Slots(self._crawler) if self.config.partition_by == "slot" else OneSlot()
            client = await self._connection.open()
            where = f" {self.config.crawl!r} at {self._connection.target}"
            start_keys = self._start_keys
            if start_keys is not None:
                self._connection.need_one_slot(self.config.crawl, start_keys.keys)
            frontier = frontier_of(self.config, client, start_keys)
            if self.config.flush_on_start:
                gone = await flush(frontier, self.config.worker_ttl_s)
                logger.info("Crawl %r flushed: %s", self.config.crawl, _counts(gone))
            await self._join(frontier)
        except (FrontierError, ConfigError, UnsupportedScrapy) as error:
            logger.error("scrapy_dq cannot open the crawl%s: %s", where, error)
            raise

    async def _join(self, frontier: Frontier) -> None:
        config = self.config
        spider = self._crawler.spider
        assert spider is not None
        crawl = identity_of(config, self._crawler)
        self.worker = Worker(
            frontier, crawl, options_of(config, self.slots.most), self,
            connect=self._connection.blocking, capacity=self._capacity, limit=self.slots.limit,
        )  # fmt: skip
        self.listening = Listening(
            self.worker, self._patience_s, lambda: self.settlement.paused or self.worker.on_hold
        )
        joined = await self.worker.start(uuid.uuid4().hex)
        self.opened = True
        self.adopted = joined.adopted
        self.paused = joined.words.hold is Hold.PAUSED
        if crew := own_member():
            crew.joined(self._crawler, joined.epoch, joined.run, over=joined.status is Status.FINISHED)
        spider.dq_worker = self.worker.id  # type: ignore[attr-defined]
        self._dupefilter.open()
        self._listen()
        if config.retry_after_max_s and config.partition_by != "none":
            # Signals hold their receivers weakly.
            self._retry_after = RetryAfter(self.slots, self.worker, config.retry_after_max_s, self._stats)
            self._crawler.signals.connect(self._retry_after.downloaded, signals.response_downloaded)
        if isinstance(self._stats, SharedStats):
            self._sharing = StatsSharing(self._stats, frontier, self.worker, config.stats_interval_s)
        self._announce(joined, crawl)
        self._watch_progress(time.monotonic(), joined.census.done)

    def _listen(self) -> None:
        self._crawler.signals.connect(self._stay_open, signals.spider_idle)
        spider = self._crawler.spider
        if self._start_keys is not None and isinstance(spider, RedisMixin):
            spider.server = self._connection.blocking()
            self._crawler.signals.connect(spider.spider_idle, signals.spider_idle)
            stay = f"closes after {spider.max_idle_time:g} s" if spider.max_idle_time else "stays open"
            logger.info("Fed by %s; %s when nothing comes", ", ".join(self._start_keys.keys), stay)

    def _stay_open(self) -> None:
        if self.listening.on:
            raise DontCloseSpider

    async def close(self, reason: str) -> None:
        """Leave the crawl and let go of Redis; safe at any stage of `open`."""
        for timer in (self._grace, self._progress):
            if timer is not None:
                timer.cancel()
        if hasattr(self, "listening"):
            self.listening.stop()
        try:
            if self.opened:
                await self._leave()
                if reason == "finished":
                    self._mention_failures()
                self._dupefilter.close(reason)
        finally:
            await self._connection.close()

    async def _leave(self) -> None:
        leaving = self.worker.stop(self._time_left())
        if self._sharing is None:
            await leaving
            return
        # What was counted is told before the next run can begin; what leaving itself counts, after it.
        await asyncio.gather(self._sharing.end(), leaving)
        await self._sharing.end()

    # What the scheduler asks.

    def filtered(self, request: Request) -> bool:
        """Tell whether a DUPEFILTER_CLASS that is not ours drops *request*; ours asks the frontier."""
        return not (self.shares_seen or request.dont_filter) and self._dupefilter.request_seen(request)

    def log_duplicate(self, request: Request) -> None:
        spider = self._crawler.spider
        assert spider is not None
        self._dupefilter.log(request, spider)

    # What the worker tells (frontier.dialogue.Listener).

    def leases_arrived(self) -> None:
        self.settlement.wake()

    def run_finished(self) -> None:
        if self.worker.over:
            # A spider that is kept open (DontCloseSpider) would go on to feed a run that takes nothing.
            self.settlement.close_spider("finished")
        self.settlement.wake()

    def frontier_lost(self) -> None:
        self.settlement.close_spider("frontier_lost")

    def put_dropped(self, put: Put) -> None:
        self._scheduler.put_dropped(put)

    def put_refused(self, put: Put) -> None:
        raise AssertionError("no request is put with a bound")

    def outbox_lost(self, parentless: bool) -> None:
        self._scheduler.forget_sent()
        # Another dupefilter of this process takes what was lost for known, and cannot be told.
        if parentless or not self.shares_seen:
            self.settlement.close_spider("outbox_lost")

    def told(self, before: Words, words: Words) -> None:
        if words.forgets != before.forgets:
            self._scheduler.forget_sent()
        if words.hold is not before.hold:
            self.paused = words.hold is Hold.PAUSED
            logger.info("Crawl %r: %s", self.config.crawl, _HOLDS[words.hold])
            self.settlement.wake()
        if words.stops > before.stops:
            logger.info("Crawl %r: all its workers are asked to stop", self.config.crawl)
            self.settlement.close_spider("stopped")

    def counted(self, what: str, amount: float) -> None:
        if what in _COUNTERS:
            self._stats.inc_value(_COUNTERS[what], amount)  # type: ignore[arg-type]
        if what == "error":
            self._connection.missed()
        elif what == "exchange" and self.listening.exchanged():
            self.settlement.wake()  # it finds that it is idle

    def _capacity(self) -> int:
        if self.settlement.closing:
            if self._grace is None:
                loop = asyncio.get_running_loop()
                release = self._scheduler.release_unfinished
                self._grace = loop.call_later(self.config.shutdown_grace_s, release)
            return 0
        return 0 if self.settlement.paused else self._concurrency

    def _time_left(self) -> float:
        """Return what is left of the grace; enough for one more try if it is over."""
        left = self.config.shutdown_grace_s
        if self._grace is not None:
            left = self._grace.when() - asyncio.get_running_loop().time()
        return max(left, self.config.redis_timeout_s)

    # What is logged.

    def _announce(self, joined: Joined, crawl: Identity) -> None:
        name, census = self.config.crawl, joined.census
        if joined.status is Status.FINISHED:
            over = f"run {self.config.run_name!r} is finished"
            what = f"{over}: nothing to do. Another DQ_RUN_NAME starts a new run"
        elif not joined.resumed:
            what = f"new run {joined.run}; {_counts(census)}"
        else:
            others = census.workers - 1
            if others:
                verb, hint = f"joined run {joined.run} beside {others} registered workers", ""
            else:
                verb, hint = f"resumed run {joined.run}", ". SCHEDULER_FLUSH_ON_START = True starts afresh"
            adopted = ", and what scrapy-redis had seen" if joined.adopted else ""
            what = f"{verb}; {_counts(census)}{adopted}{hint}"
        logger.info("Crawl %r at %s: %s", name, self._connection.target, what)
        if joined.words.hold:
            logger.warning("Crawl %r is %s", name, _HOLDS[joined.words.hold])
        if joined.limits_changed:
            logger.info(
                "DQ_DOMAIN_DELAY, DQ_DOMAIN_CONCURRENCY or DQ_DOMAIN_LIMITS are not what this run went by: "
                "from now on all workers go by this worker's"
            )
        if joined.spider_args != crawl.spider_args:
            names = differing(joined.spider_args, crawl.spider_args)
            logger.warning(
                "This run was started with other spider arguments (-a): %s. If these are different crawls, "
                "give each a name of its own with DQ_CRAWL, for example '%%(spider)s-%%(category)s'",
                ", ".join(names),
            )

    def _mention_failures(self) -> None:
        census, crawl = self.worker.census, shlex.quote(self.config.crawl)
        for count, what, command, level in (
            (census.failed, "failed for good", "failed", logging.INFO),
            (census.dead, "became dead letters", "dead", logging.WARNING),
        ):
            if count:
                logger.log(
                    level, "Of this run's requests, %d %s: `scrapy dq %s --crawl %s` lists them", count, what,
                    command, crawl,
                )  # fmt: skip

    def _watch_progress(self, since: float, done: int) -> None:
        interval_s = self.config.log_interval_s
        if interval_s:
            loop = asyncio.get_running_loop()
            self._progress = loop.call_later(interval_s, self._log_progress, since, done)

    def _log_progress(self, since: float, done: int) -> None:
        now, census = time.monotonic(), self.worker.census
        logger.info(
            "All workers together: %.1f pages/s, %d done, %d waiting, %s%d in flight, %d workers",
            (census.done - done) / (now - since),
            census.done,
            census.waiting,
            _delayed(census),
            census.in_flight,
            census.workers,
        )
        self._watch_progress(now, census.done)


def _counts(census: Census) -> str:
    return f"{census.waiting} waiting, {_delayed(census)}{census.in_flight} in flight, {census.seen} seen"


def _delayed(census: Census) -> str:
    return f"{census.delayed} delayed, " if census.delayed else ""


def _mention_settings_without_effect(crawler: Crawler, config: Config) -> None:
    settings = crawler.settings
    names = [name for name in _WITHOUT_EFFECT if (settings.getpriority(name) or 0) > 0 and settings.get(name)]
    if names:
        logger.info(
            "These settings have no effect with scrapy_dq.Scheduler: %s. The order is DQ_ORDER = %r, and "
            "the crawl is kept in Redis",
            ", ".join(names),
            config.order.value,
        )
