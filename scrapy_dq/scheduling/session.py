"""The lifecycle of a worker in a crawl: from the settings to the last exchange."""

from __future__ import annotations

import asyncio
import logging
import shlex
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Response

from scrapy_dq import gc_tuning
from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import CannotDecode
from scrapy_dq.environment import compared, data_dir, require_asyncio
from scrapy_dq.extras import pip_install
from scrapy_dq.factory import codec_of, config_of, flush_crawl, frontiers_of, identity_of, options_of
from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Admission, Commands, FrontierError, Hold, Status
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Defer, Fail, Move, Put, Release
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.pace import OneByOne, Pace
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.refusal import refuse
from scrapy_dq.revisits.policy import policy_of
from scrapy_dq.revisits.revisits import Revisits
from scrapy_dq.scheduling import progress_log
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.downloads import Downloads
from scrapy_dq.scheduling.dupefilter import DupeFilter, Duplicates, dupefilter_of
from scrapy_dq.scheduling.engine_hooks import EngineHooks, UnsupportedScrapy
from scrapy_dq.scheduling.feeds import open_none, warn_of_journals
from scrapy_dq.scheduling.fingerprints import quick_fingerprint
from scrapy_dq.scheduling.in_progress import InProgress
from scrapy_dq.scheduling.logins import LoneLogin
from scrapy_dq.scheduling.notices import Notices
from scrapy_dq.scheduling.partitions import OneSlot, Slots
from scrapy_dq.scheduling.retry_after import RetryAfter
from scrapy_dq.scheduling.stored_form import StoredForm
from scrapy_dq.scheduling.warnings_once import WarningsOnce
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.sharding.make import worker_of
from scrapy_dq.signals import crawl_joined, crawl_opening, leases_ended
from scrapy_dq.start_urls.idle_timeout import IdleTimeout
from scrapy_dq.start_urls.keys import feed_spider, patience_s, start_keys_of
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import SharedStats, StatsSharing, Tally
from scrapy_dq.text import losses, run_not_started, shown

if TYPE_CHECKING:
    from scrapy_dq.scheduling.ends import Ends
    from scrapy_dq.scheduling.tracing import Tracing

logger = logging.getLogger(__name__)
NO_LIMIT = 100
"""Maximum number of leases at the same time if CONCURRENT_REQUESTS is 0."""
_COUNTERS: dict[Count | type[Move], str] = {
    Count.EXCHANGE: stats.EXCHANGES,
    Count.SECONDS: stats.EXCHANGE_SECONDS,
    Count.ERROR: stats.REDIS_ERRORS,
    Count.REJOIN: stats.REJOINS,
    Count.RECLAIM: stats.RECLAIMED,
    Ack: stats.ACKED,
    Again: stats.REVISITS,
    Release: stats.RELEASED,
    Defer: stats.DEFERRED,
    Bury: stats.BURIED,
    Decline: stats.DECLINED,
    Fail: stats.FAILED,
}


class Session(Listener):
    """Connects a crawler to its frontier, and is the listener of its worker.

    The parts of a scheduler share the attributes of this object. Attributes without a value here exist only
    after `open`.
    """

    worker: Worker
    joined: Joined
    left_out: bool
    """The run was finished when this worker joined, so the worker takes no part in it."""
    hooks: EngineHooks
    stored_form: StoredForm
    slots: Slots | OneSlot
    downloads: Downloads
    listening: IdleTimeout

    def __init__(self, crawler: Crawler, config: Config, dupefilter: BaseDupeFilter) -> None:
        assert crawler.spider is not None
        assert crawler.stats is not None
        assert crawler.request_fingerprinter is not None
        settings = crawler.settings
        self.config = config
        self.crawler = crawler
        self.count = Tally(crawler.stats.inc_value)
        self.in_progress = InProgress()
        self.duplicates = Duplicates(dupefilter, crawler.spider, self.count)
        self._own_filter = None if isinstance(dupefilter, DupeFilter) else dupefilter
        self._dupefilter = dupefilter
        self._stats = crawler.stats
        self._start_keys = start_keys_of(crawler.spider, config)
        self._patience_s = patience_s(crawler.spider, config)
        self._concurrency = settings.getint("CONCURRENT_REQUESTS") or NO_LIMIT
        self._connection = Connection(config, data_dir(config.data_dir))
        self._grace: asyncio.TimerHandle | None = None
        self._closed = False
        self._side_tasks = ExitStack()
        """Tasks that end when the worker leaves."""
        self._sharing: StatsSharing | None = None
        self._notices: Notices | None = None
        self._tracing: Tracing | None = None
        self.codec = codec_of(config, crawler)
        self.revisits: Revisits | None = None
        if config.revisit:
            policy = policy_of(crawler, config)
            self.revisits = Revisits(crawler, policy, self.codec, lambda *of: self.stored_form.of(*of))
        self.paused = False
        """The crawl is paused, so the engine gets no requests, not even local requests."""
        # These lines follow the use of the settings, so that errors in settings are reported first. They
        # precede the join, because the project's fingerprinter may raise.
        self.warnings = WarningsOnce(debug=settings.getbool("SCHEDULER_DEBUG"))
        self.admissions = Admissions(quick_fingerprint(crawler.request_fingerprinter), self._own_filter)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Session:
        """Check the settings and the reactor.

        Raises:
            ConfigError: a setting or the reactor is invalid; one ERROR line was logged.
        """
        try:
            require_asyncio()
            config = config_of(crawler)
            progress_log.log_settings(crawler, config)
            return cls(crawler, config, dupefilter_of(crawler))
        except ConfigError as error:
            refuse(logger, crawler, "scrapy_dq cannot start", error)
            raise

    async def open(self, ends: Ends) -> None:
        """Connect to Redis, delete the crawl if SCHEDULER_FLUSH_ON_START is True, and join.

        Args:
            ends: gets the engine's reports.

        Raises:
            FrontierError, ConfigError, UnsupportedScrapy: one ERROR line was logged. This worker is not in
                the crawl.
        """
        self._ends = ends
        where = ""
        self.crawler.signals.send_catch_log(
            crawl_opening, grace_s=self.config.shutdown_grace_s, tune_gc=self.config.tune_gc
        )
        try:
            failed = map(int, self.crawler.settings.getlist("RETRY_HTTP_CODES"))
            self.hooks = EngineHooks(self.crawler, ends.settled, ends.downloaded, failed)
            if (revisits := self.revisits) is not None:
                lease_of = self.in_progress.lease_of
                self.hooks.answered = lambda to, answer: revisits.answered(lease_of(to), answer)
                if revisits.field:
                    self.hooks.yielded = lambda of, item: revisits.yielded(lease_of(of), item)
            self.slots = Slots(self.crawler) if self.config.partition_by == "slot" else OneSlot()
            self.downloads = Downloads(
                self.slots, self.config.limits, self.hooks.wake,
                block=lambda *block: self.worker.block(*block),
                most=self.crawler.settings.getint("CONCURRENT_REQUESTS"),
            )  # fmt: skip
            await self._connection.open()
            where = f" {self.config.crawl!r} at {self._connection.target}"
            start_keys = self._start_keys
            if start_keys is not None:
                self._connection.require_one_slot(self.config.crawl, start_keys.keys)
            if self.config.flush_on_start:
                deleted = await flush_crawl(self.config, self._connection)
                logger.info("Crawl %r flushed: %s", self.config.crawl, progress_log.counts_of(deleted))
            await self._join(await frontiers_of(self.config, self._connection, start_keys))
        except (FrontierError, ConfigError, UnsupportedScrapy) as error:
            refuse(logger, self.crawler, f"scrapy_dq cannot open the crawl{where}", error)
            raise

    async def _join(self, frontiers: list[Frontier]) -> None:
        config, frontier = self.config, frontiers[0]
        spider = self.crawler.spider
        assert spider is not None
        crawl = identity_of(config, self.crawler)
        self._frontier, self._spider_args = frontier, crawl.spider_args
        self._tracing = self._traced() if config.trace else None
        worker = worker_of(
            frontiers, crawl, options_of(config, self.slots.most), self,
            connect=self._connection.another, capacity=self._capacity,
            limit=self.downloads.limit, pace=lambda number: OneByOne() if config.strict_order else Pace(),
        )  # fmt: skip
        self.worker = worker if self._tracing is None else self._tracing.traced(worker)
        self.listening = IdleTimeout(
            self.worker, self._patience_s, lambda: self.hooks.paused or self.worker.on_hold
        )
        self._side_tasks.callback(self.listening.stop)
        joined = self.joined = await self.worker.start(uuid.uuid4().hex)
        self.paused = joined.commands.hold is Hold.PAUSED
        self.left_out = joined.status is Status.FINISHED
        spider.dq_worker = self.worker.id  # type: ignore[attr-defined]
        self.crawler.signals.send_catch_log(
            crawl_joined, crawl=config.crawl, epoch=joined.epoch, run=joined.run, new=not joined.crawled,
            over=self.left_out, outage=lambda: self.worker.outage, entry_of=self._entry_of,
        )  # fmt: skip
        if self.left_out:
            self.hooks.skip_start()
            self.listening.stop()
            open_none(self.crawler)
        self.crawler.signals.connect(self._feeds_are_open, signals.spider_opened)
        self._dupefilter.open()
        if not self.left_out:
            self._listen()
        if config.tune_gc:
            gc_tuning.freeze()
            self._side_tasks.callback(gc_tuning.release)
        progress_log.log_join(self.crawler, config, self._connection.target, joined, crawl)
        self.stored_form = StoredForm(self.crawler)
        self._start_side_tasks(frontiers)

    def _start_side_tasks(self, frontiers: list[Frontier]) -> None:
        crawler, config, worker = self.crawler, self.config, self.worker
        longest_s = config.retry_backoff.retry_after
        if longest_s and config.partition_by != "none":
            # An attribute, because signals hold their receivers weakly.
            self._retry_after = RetryAfter(self.slots, self.downloads, longest_s, self._stats)
            crawler.signals.connect(self._retry_after.downloaded, signals.response_downloaded)
        if isinstance(self._stats, SharedStats):
            self._sharing = StatsSharing(self._stats, frontiers[HOME], worker)
        if config.notify_url:
            self._notices = Notices(config.notify_url, config.crawl, worker)
        clients, every_s = [each.client for each in frontiers], crawler.settings.getfloat("LOGSTATS_INTERVAL")
        monitor = progress_log.HealthMonitor(clients, self._connection.target, embedded=config.embedded)
        self._side_tasks.callback(monitor.stop)
        if every_s:
            self._side_tasks.callback(progress_log.Progress(every_s, worker, self.hooks).stop)

    def _entry_of(self, response: Response | None) -> bytes:
        request = self.hooks.request_of(response) if response is not None else None
        return self.in_progress.lease_of(request) if request is not None else b""

    def _traced(self) -> Tracing:
        try:
            from scrapy_dq.scheduling.tracing import Tracing
        except ImportError as error:
            needs = f"DQ_TRACE = {self.config.trace:g} needs OpenTelemetry ({error})"
            raise ConfigError(f"{needs}: {pip_install('otel')}") from error
        return Tracing(self.crawler, self.config, self.in_progress.lease_of)

    def _listen(self) -> None:
        self.crawler.signals.connect(self._idle, signals.spider_idle)
        # An attribute, because signals hold their receivers weakly.
        self._logins = LoneLogin(self.crawler, self.in_progress.lease_of, self.worker)
        if self._start_keys is not None:
            feed_spider(self.crawler, self._start_keys, self._connection, embedded=self.config.embedded)

    def _feeds_are_open(self) -> None:
        warn_of_journals(self.crawler, self.config)
        progress_log.log_feeds(self.crawler)

    def _idle(self) -> None:
        if self.listening.on:
            raise DontCloseSpider
        if self.worker.ending != "finished":
            raise CloseSpider(self.worker.ending)
        if self.hooks.start_failed:
            raise CloseSpider("start_error")  # Scrapy's own reason since 2.18

    async def close(self, reason: str) -> None:
        """Leave the crawl and disconnect from Redis; safe at any stage of `open`."""
        self._side_tasks.close()
        self._closed = True
        try:
            if hasattr(self, "joined"):
                await self._leave(reason)
                starts = await self._interrupted() if reason == "start_incomplete" else []
                hold = self.worker.on_hold
                progress_log.log_end(self.config.crawl, reason, self.worker.census, starts, on_hold=hold)
                progress_log.log_nothing_new(self.config, reason, self.worker, self._stats)
                census, option = self.worker.census, f"--crawl {shlex.quote(self.config.crawl)}"
                if reason != "frontier_lost":
                    self._warn_last(losses(census.failed, census.dead, option))
                if reason == "finished" and progress_log.joins_other_run(self.config, self.joined):
                    run_name = self.joined.run_name
                    self._warn_last(run_not_started(self.worker.run, run_name, self.config.run_name))
                self._dupefilter.close(reason)
        finally:
            await self._connection.close()
            if self._tracing is not None:
                await self._tracing.end()

    async def _leave(self, reason: str) -> None:
        leaving = self.worker.stop(self._time_left(), reason=reason)
        if self._sharing is None:
            await leaving
        else:
            # Send stats before the next run can start, and again when the worker has left, for the last
            # counts.
            await asyncio.gather(self._sharing.end(), leaving)
            await self._sharing.end()
        if self._notices is not None:
            await self._notices.end()

    def _warn_last(self, text: str) -> None:
        """Log *text*, if it is not empty, as the last line, after Scrapy's stats."""

        def warn() -> None:
            logger.warning("%s", text)

        if text:
            self.crawler.signals.connect(warn, signals.engine_stopped, weak=False)

    async def _interrupted(self) -> list[str]:
        """Return, for a log, the arguments of each interrupted start(); empty if Redis does not answer."""
        with suppress(FrontierError):
            return [compared(name, self._spider_args) for name in await self._frontier.interrupted_starts()]
        return []

    # The worker's reports.

    def leases_arrived(self) -> None:
        self.hooks.wake()

    def run_finished(self) -> None:
        if self.worker.over:
            # A spider that is kept open (DontCloseSpider) would keep adding requests to a finished run.
            self.hooks.close_spider(self.worker.ending)
            self._begin_grace()
        self.hooks.wake()

    def frontier_lost(self) -> None:
        self.hooks.close_spider("frontier_lost")
        self._begin_grace()

    def cut_off(self) -> None:
        self.hooks.close_spider("cut_off")

    def put_dropped(self, put: Put) -> None:
        request = put.source
        if request is None:  # a long outbox has moved *put* to disk and back
            try:
                request = self.codec.decode(put.payload)
            except CannotDecode:
                self.count(stats.DUPLICATES)
                return
        if put.admission is Admission.SEED:
            self.count(stats.SEEDS_KNOWN)
            logger.debug("Start request already admitted in this run: %s", shown(request))
        else:
            self.duplicates.add(request)
        self.crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self.crawler.spider
        )

    def outbox_lost(self, parentless: bool, reason: str = "outbox_lost") -> None:
        self.admissions.forget_sent()
        # A dupefilter of the project has recorded the lost requests as seen, and cannot forget them.
        if parentless or self._own_filter is not None:
            self.hooks.close_spider(reason)

    def rolled_back(self, parentless: bool) -> None:
        self.outbox_lost(parentless, "frontier_rolled_back")

    def commanded(self, before: Commands, commands: Commands) -> None:
        if commands.forgets != before.forgets:
            self.admissions.forget_sent()
        if commands.hold is not before.hold:
            self.paused = commands.hold is Hold.PAUSED
            logger.info("Crawl %r: %s", self.config.crawl, progress_log.HOLDS[commands.hold])
            self.hooks.wake()
        if commands.stops > before.stops:
            logger.info("Crawl %r: all workers were asked to stop", self.config.crawl)
            self.hooks.close_spider("stopped")

    def confirmed(self, moves: Sequence[Move]) -> None:
        done = [move.entry_id for move in moves if isinstance(move, (Ack, Again))]
        others = [move.entry_id for move in moves if isinstance(move, (Bury, Decline, Fail, Release))]
        if done or others:
            self.crawler.signals.send_catch_log(leases_ended, done=done, others=others)

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        if kind in _COUNTERS:
            self._stats.inc_value(_COUNTERS[kind], amount)  # type: ignore[arg-type]
        if kind is Count.ERROR:
            self._connection.note_no_answer()
        elif kind is Count.EXCHANGE and self.listening.exchanged():
            self.hooks.wake()  # so that the engine notices that it is idle
        if kind is Count.EXCHANGE and self.worker.max_pages_reached:
            self.hooks.close_spider("max_pages")
        elif kind is Count.EXCHANGE and self.worker.only_over_budget():
            self.hooks.close_spider("domain_budget")

    def _capacity(self) -> int:
        if self.hooks.closing:
            self._begin_grace()
            return 0
        return 0 if self.hooks.paused else self._concurrency

    def _begin_grace(self) -> None:
        # Other methods than `_capacity` call this when the run is over or the frontier is gone, because then
        # no exchange asks for the capacity. After `close`, a late answer must not begin a grace period.
        if self._grace is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self.config.shutdown_grace_s, self._end_grace)
            self._side_tasks.callback(self._grace.cancel)

    def _end_grace(self) -> None:
        """Release unfinished leases. End the engine's wait for downloads, because they might take minutes."""
        self._ends.release_unfinished()
        count = self.hooks.give_up_downloads()
        if count:
            logger.info(
                "DQ_SHUTDOWN_GRACE = %g s is over: %d downloads are given up, and other workers repeat them",
                self.config.shutdown_grace_s,
                count,
            )

    def _time_left(self) -> float:
        """Return the seconds left of the grace period; at least one timeout of Redis, for a last try."""
        left = self.config.shutdown_grace_s
        if self._grace is not None:
            left = self._grace.when() - asyncio.get_running_loop().time()
        return max(left, self.config.redis_timeout_s)
