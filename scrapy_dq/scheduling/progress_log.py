"""Log lines of a worker about the whole crawl and its Redis: at the start, at intervals, at the end."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.statscollectors import StatsCollector

from scrapy_dq.backend import cluster, health
from scrapy_dq.environment import differing
from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import Census, FrontierUnavailable, Hold, Identity, Limits, Status
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.repeated import Repeated
from scrapy_dq.scheduling.engine_hooks import EngineHooks
from scrapy_dq.scheduling.feeds import kept_in_process
from scrapy_dq.settings import Config, breadth_first_queues, ignored_queue_settings, peers
from scrapy_dq.stats import names as stats
from scrapy_dq.text import CREW_SHOWS, count_of, named_run, printable

logger = logging.getLogger(__name__)
EVERY_S = 10.0
"""Seconds between two checks of Redis."""
IGNORED_SETTINGS = ("JOBDIR", "SCHEDULER_PRIORITY_QUEUE")
CLOSING_COUNTS = (
    "CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_PAGECOUNT_NO_ITEM",
    "CLOSESPIDER_ERRORCOUNT",
)  # fmt: skip
"""Settings that each worker obeys separately."""
HOLDS = {
    Hold.NONE: "resumed",
    Hold.PAUSED: "paused; no requests are sent until `scrapy dq resume`",
    Hold.DRAINING: "draining; leased requests are finished, and no more are leased until `scrapy dq resume`",
}


_ENDS = {
    "start_incomplete": (
        logging.ERROR,
        "all requests found are done, but {census.incomplete} start() did not complete (its worker was "
        "killed or stopped, or it raised), and no other start() with the same arguments did{starts}. The run "
        "stays open: `scrapy crawl` with those arguments runs start() again, and crawls what is missing; "
        "`scrapy dq complete {option}` ends the run without that",
    ),
    "start_completed": (
        logging.WARNING,
        "a start() was incomplete when this worker found nothing else to do. Since then its worker has come "
        "back, or another worker has completed the same start(): see `scrapy dq status`",
    ),
    "start_error": (  # Scrapy has logged an ERROR with the traceback
        logging.WARNING,
        "start() raised. Unless another worker with the same arguments has completed its own, the run stays "
        "open: the same command runs start() again, and crawls what is missing; `scrapy dq complete "
        "{option}` ends the run without that",
    ),
    "frontier_damaged": (
        logging.ERROR,
        "keys were deleted, evicted, or lost in a failover during the run (workers have found "
        "{census.gone}): requests, or stored fingerprints, are lost; the rest is done. "
        "SCHEDULER_FLUSH_ON_START = True crawls everything again",
    ),
    "cut_off": (
        logging.ERROR,
        "only this worker does not reach a part of Redis. It closes, so that the other workers need not wait "
        "for it. The same command yields its start requests again",
    ),
    "unserved": (
        logging.ERROR,
        "{census.unserved} requests became dead letters because no worker has the code for them; the rest is "
        "done. Retry them with the right code",
    ),
    "max_pages": (
        logging.INFO,
        "DQ_MAX_PAGES is reached: {census.pages} requests are done; {counts}. Waiting requests stay: the "
        "same command with a larger DQ_MAX_PAGES, or with none, continues",
    ),
    "domain_budget": (
        logging.INFO,
        "the remaining requests exceed the budgets of their partitions, and stay: {counts}. To crawl more of "
        "them, raise a budget with `scrapy dq limit <spider> --site <partition> --budget`, or run the same "
        "command with a larger DQ_DOMAIN_BUDGET",
    ),
}
"""By close reason: the level of the log line, and its text, which describes the end and advises the user."""
_STOPPED = "this worker stops ({reason}) before the run has finished: {counts}. The same command continues"
_STOPPED_ON_HOLD = (
    "this worker stops ({reason}) before the run has finished: {counts}. The crawl is on hold: `scrapy dq "
    "resume {option}`, and then the same command, continues"
)
_LOGGED_ELSEWHERE = (
    "finished", "frontier_lost", "frontier_rolled_back", "outbox_lost", "run_over", "cannot_serve"
)  # fmt: skip


def log_settings(crawler: Crawler, config: Config) -> None:
    """Log which settings lack the effect that users may expect, and which were translated to a DQ_ORDER."""
    settings, order = crawler.settings, config.order.value
    if understood := breadth_first_queues(settings):
        logger.info("%s: breadth-first, the same as DQ_ORDER = %r", " and ".join(understood), order)
    names = [*IGNORED_SETTINGS, *ignored_queue_settings(settings, config.order)]
    if names := [name for name in names if (settings.getpriority(name) or 0) > 0 and settings.get(name)]:
        logger.info(
            "These settings have no effect with scrapy_dq.Scheduler: %s. The order is DQ_ORDER = %r, and "
            "the crawl is kept in Redis",
            printable(", ".join(names)), order,
        )  # fmt: skip
    for level, text in peers.advice(settings, config.order):
        logger.log(level, "%s", text)


def warnings_of_each_worker(crawler: Crawler, config: Config) -> Iterator[str]:
    """Yield warnings about settings of the project whose effect grows with the number of workers."""
    settings = crawler.settings
    delay_s = getattr(crawler.spider, "download_delay", None) or settings.getfloat("DOWNLOAD_DELAY")
    pace = [f"DOWNLOAD_DELAY = {delay_s:g}"] if delay_s else []
    if settings.getbool("AUTOTHROTTLE_ENABLED") and not config.domain_concurrency:
        pace.append("AUTOTHROTTLE_ENABLED = True")
    if pace and not (config.partition_by == "none" or config.domain_delay_s or config.domain_limits):
        yield (
            f"{', '.join(pace)}: each worker keeps its own pace, and together they send a site more "
            f"requests. For one pace of all workers together, set DQ_DOMAIN_DELAY = {delay_s or 1:g} (or "
            f"DQ_DOMAIN_CONCURRENCY) and DOWNLOAD_DELAY = 0"
        )
    counts = [f"{name} = {count}" for name in CLOSING_COUNTS if (count := settings.getint(name))]
    if counts and not config.max_pages:
        yield (
            f"{', '.join(counts)}: each worker counts separately, and stops only itself. DQ_MAX_PAGES "
            f"limits the pages of all workers together"
        )


def log_feeds(crawler: Crawler) -> None:
    """Log which of the open feeds lose items if this worker is killed."""
    exporter = crawler.get_extension(FeedExporter)
    if exporter is not None and (names := kept_in_process(exporter)):
        logger.warning(
            "These feeds may be written only when this worker closes, or a buffer at a time: %s. If it is "
            "killed, they lack items of pages that are done. scrapy_dq.RedisPipeline loses no items; with "
            "scrapy_dq.Addon, nor does a local file in a format of Scrapy, without batches or postprocessing",
            printable(", ".join(names)),
        )


def log_join(crawler: Crawler, config: Config, target: str, joined: Joined, crawl: Identity) -> None:
    """Log whether the run is new, finished or resumed, how many workers it has, and how settings differ."""
    census, run = joined.census, named_run(f"run {joined.run}", joined.run_name)
    if joined.status is Status.FINISHED:
        if joined.ended_s is None and not config.run_name:
            message = f"run {joined.run} has ended while this worker joined it: nothing to do"
        elif joined.ended_s is None:
            message = (
                f"run {config.run_name!r} is finished: nothing to do. Another DQ_RUN_NAME starts a new run"
            )
        else:
            left_s = crawl.restart_window_s - joined.ended_s
            message = (
                f"run {joined.run}, with the same arguments, was finished {joined.ended_s:.0f} s ago by "
                f"workers on several hosts: nothing to do for a restarted worker. A new run can start in "
                f"{left_s:.0f} s, or now with another DQ_RUN_NAME"
            )
    elif not joined.resumed:
        message = f"new {run}; {counts_of(census)}"
    else:
        others = census.workers - 1
        workers = f"{others} registered worker{'s' * (others > 1)}"
        verb = f"joined {run} alongside {workers}" if others else f"resumed {run}"
        adopted = ", and the fingerprints of scrapy-redis" if joined.adopted else ""
        hint = "" if others else ". SCHEDULER_FLUSH_ON_START = True starts over"
        message = f"{verb}; {counts_of(census)}{adopted}{hint}"
    # At LOG_LEVEL=WARNING, no other line explains why a worker closes as `finished`, with 0 items.
    level = logging.WARNING if joined.status is Status.FINISHED else logging.INFO
    logger.log(level, "Crawl %r at %s: %s", config.crawl, target, message)
    if joins_other_run(config, joined):
        logger.warning(
            "Crawl %r: %s is not finished, and this worker continues it. Run %r begins when the same command "
            "runs again after that", config.crawl, run, config.run_name, extra={CREW_SHOWS: True},
        )  # fmt: skip
    if joined.loss:
        logger.warning("Crawl %r: %s", config.crawl, joined.loss, extra={CREW_SHOWS: True})
    if joined.commands.hold:
        logger.warning("Crawl %r is %s", config.crawl, HOLDS[joined.commands.hold])
    if census.workers > 1:
        for warning in warnings_of_each_worker(crawler, config):
            logger.warning("%s", warning)
    if changes := _changes(joined.limits_before, crawl.limits):
        logger.warning(
            "Crawl %r: the limits of this worker differ from the run's limits, and all workers use them from "
            "now on: %s. Give all workers the same settings; `scrapy dq limit` changes them in a run",
            config.crawl, printable("; ".join(changes), 1000), extra={CREW_SHOWS: True},
        )  # fmt: skip
    if joined.spider_args != crawl.spider_args:
        names = differing(joined.spider_args, crawl.spider_args)
        logger.warning(
            "This worker and its run differ in spider arguments (-a): %s. If these are different crawls, "
            "give each its own name with DQ_CRAWL, for example '%%(spider)s-%%(category)s'",
            printable(", ".join(names)),
        )


def joins_other_run(config: Config, joined: Joined) -> bool:
    """Tell whether the worker continues a run with another name than its DQ_RUN_NAME."""
    return bool(config.run_name) and joined.run_name != config.run_name


def _changes(before: Limits | None, now: Limits | None) -> list[str]:
    """Return the settings of the limits that differ. DQ_DOMAIN_LIMITS has no values, the others have both."""
    if before is None or now is None:
        return []
    rows = (
        ("DQ_DOMAIN_DELAY", before.delay_s, now.delay_s),
        ("DQ_DOMAIN_CONCURRENCY", before.concurrency, now.concurrency),
        ("DQ_DOMAIN_BUDGET", *(f"{limits.budget}{'/day' * limits.daily}" for limits in (before, now))),
    )
    own_differ = (before.own, before.own_budgets) != (now.own, now.own_budgets)
    return [f"{name} = {new} (was {old})" for name, old, new in rows if old != new] + [
        "DQ_DOMAIN_LIMITS"
    ] * own_differ


def log_end(
    crawl: str, reason: str, census: Census, starts: Sequence[str] = (), *, on_hold: bool = False
) -> None:
    """Log why a run has ended or this worker stops, and advice for the user.

    Args:
        starts: the known arguments of interrupted start() methods.
        on_hold: the crawl is paused or draining.
    """
    if reason in _LOGGED_ELSEWHERE:
        return
    if reason == "start_incomplete" and not census.incomplete:
        reason = "start_completed"
    if reason not in _ENDS and census.empty:
        return
    level, text = _ENDS.get(reason, (logging.INFO, _STOPPED_ON_HOLD if on_hold else _STOPPED))
    text = text.format(
        census=census, counts=counts_of(census), option=f"--crawl {shlex.quote(crawl)}",
        reason=printable(reason, 100), starts=printable(f": {'; '.join(starts[:5])}") if starts else "",
    )  # fmt: skip
    logger.log(level, "Crawl %r: %s", crawl, text)


def log_nothing_new(config: Config, reason: str, worker: Worker, counts: StatsCollector) -> None:
    """Log if SCHEDULER_PERSIST left a run nothing to crawl, because all start requests were duplicates."""
    census = worker.census
    if census.done or census.failed or census.dead or worker.over or not counts.get_value(stats.DUPLICATES):
        return
    if config.persist and reason == "finished":
        logger.warning(
            "Crawl %r: nothing was crawled in this run: all requests that start() yields were seen in "
            "earlier runs (SCHEDULER_PERSIST). Yield requests that every run should crawl with "
            "dont_filter=True; SitemapSpider does not",
            config.crawl,
        )


class Progress:
    """Logs at intervals the progress of all workers together."""

    def __init__(self, interval_s: float, worker: Worker, hooks: EngineHooks) -> None:
        """*interval_s*: seconds between two log lines (LOGSTATS_INTERVAL)."""
        self._worker = worker
        self._hooks = hooks
        self._since, self._done = time.monotonic(), worker.census.done
        self.stop = Repeated("No progress is logged", self._log, interval_s).stop

    async def _log(self) -> None:
        census = self._worker.census
        logger.info(
            "All workers together: %.1f pages/s, %d done, %d waiting, %s%d in flight, %s%s%s",
            (census.done - self._done) / (time.monotonic() - self._since),
            census.done,
            census.waiting,
            _delayed(census),
            census.in_flight,
            count_of(census.workers, "worker"),
            # The crawl cannot end before start() has ended.
            "" if self._hooks.start_over else "; start() still runs here",
            "; outdated: Redis gives this worker no answer" if self._worker.outage else "",
        )
        self._since, self._done = time.monotonic(), census.done


def counts_of(census: Census) -> str:
    """Return the counts of a crawl, for a log line."""
    return f"{census.waiting} waiting, {_delayed(census)}{census.in_flight} in flight, {census.seen} seen"


def _delayed(census: Census) -> str:
    return f"{census.delayed} delayed, " if census.delayed else ""


class HealthMonitor:
    """Logs why Redis has become unsuitable since the last check, for example by a new eviction policy."""

    def __init__(self, clients: Sequence[Any], target: str, *, embedded: bool) -> None:
        """
        Args:
            clients: a client of `redis.asyncio` for each shard; in a cluster, they may use several nodes.
            target: the address of Redis, for messages.
        """
        self._clients = clients
        self._target = target
        self._embedded = embedded
        self._known: dict[str, set[str]] = {}
        """By node, the findings of its last check."""
        # The findings of the first check were logged when the crawl was opened.
        self._checks = Repeated("Redis is not checked", self._check, EVERY_S, first_s=0.0)
        self.stop = self._checks.stop

    async def _check(self) -> None:
        for node, client in {cluster.address_of(each): each for each in self._clients}.items():
            # If Redis does not answer, the worker reports this. Redis may also refuse INFO.
            with suppress(FrontierUnavailable), as_unavailable():
                self._compare(node, await client.info())

    def _compare(self, node: str, info: dict[str, Any]) -> None:
        found = [
            each
            for each in health.check_requirements(info, node or self._target, embedded=self._embedded)
            if each.level != health.OK
        ]
        known = self._known.get(node)
        for finding in found:
            if known is not None and finding.text not in known:
                level = logging.ERROR if finding.level == health.BAD else logging.WARNING
                logger.log(level, "Changed during the crawl: %s", finding.text)
        self._known[node] = {finding.text for finding in found}
