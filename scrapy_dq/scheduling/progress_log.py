"""What a worker logs of the whole crawl: when it opens, now and then, and at the end."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_dq.environment import differing
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import Census, Hold, Joined, Order, StartQueue, Status
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.feeds import kept_in_process
from scrapy_dq.scheduling.partitions import delay_of_each
from scrapy_dq.settings import Config, breadth_first_queues, peers, queues_in_vain, start_queue_setting
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)
WITHOUT_EFFECT = ("JOBDIR", "SCHEDULER_PRIORITY_QUEUE")
_START_REQUESTS = {
    StartQueue.SHARED: "start requests are served like all others of their priority",
    StartQueue.LIFO: "start requests are served after the others of their priority, the newest first",
}
_HOLDS = {
    Hold.NONE: "resumed",
    Hold.PAUSED: "paused; nothing is sent until somebody says `scrapy dq resume`",
    Hold.DRAINING: "draining; what is leased is finished, and no more until somebody says `scrapy dq resume`",
}


def mention_settings(crawler: Crawler, config: Config) -> None:
    """Log which settings do not do what somebody may expect of them."""
    _mention_settings_without_effect(crawler, config)
    mention_feeds(crawler)
    for level, remark in peers.remarks(crawler.settings, config.order):
        logger.log(level, "%s", remark)


def _mention_settings_without_effect(crawler: Crawler, config: Config) -> None:
    """Log which of the project's settings do nothing with this scheduler, and which are orders here."""
    settings = crawler.settings
    if understood := breadth_first_queues(settings):
        queues, order = " and ".join(understood), config.order.value
        logger.info("%s: breadth-first, which is DQ_ORDER = %r here", queues, order)
    names = [*WITHOUT_EFFECT, *queues_in_vain(settings, config.order)]
    if names := [name for name in names if (settings.getpriority(name) or 0) > 0 and settings.get(name)]:
        logger.info(
            "These settings have no effect with scrapy_dq.Scheduler: %s. The order is DQ_ORDER = %r, and "
            "the crawl is kept in Redis",
            printable(", ".join(names)),
            config.order.value,
        )
    if config.start_queue in _START_REQUESTS and config.order in (Order.PRIORITY_LIFO, Order.PRIORITY_FIFO):
        logger.info("%s: %s", start_queue_setting(settings), _START_REQUESTS[config.start_queue])


def mention_feeds(crawler: Crawler) -> None:
    """Log which feeds a kill of this worker would take items from."""
    if names := kept_in_process(crawler.settings):
        logger.warning(
            "These feeds may be written only when this worker closes, or a buffer at a time: %s. If it is "
            "killed, items of pages that are done are missing there. scrapy_dq.RedisPipeline loses none, nor "
            "does a local file with scrapy_dq.Addon in a format of Scrapy's, not in batches or postprocessed",
            printable(", ".join(names)),
        )


def announce(crawler: Crawler, config: Config, target: str, joined: Joined, crawl: Identity) -> None:
    """Log what this worker has found: a new run, others at work, other arguments than its own."""
    census = joined.census
    if joined.status is Status.FINISHED:
        if joined.ended_s is None:
            what = f"run {config.run_name!r} is finished: nothing to do. Another DQ_RUN_NAME starts a new run"
        else:
            left_s = config.restart_window_s - joined.ended_s
            what = (
                f"run {joined.run}, with the same arguments, was finished {joined.ended_s:.0f} s ago by "
                f"several workers: nothing to do for one that was started again. A new run can begin in "
                f"{left_s:.0f} s (DQ_RESTART_WINDOW), or at once with another DQ_RUN_NAME or with "
                f"DQ_RESTART_WINDOW = 0"
            )
    elif not joined.resumed:
        what = f"new run {joined.run}; {counts_of(census)}"
    else:
        others = census.workers - 1
        workers = f"{others} registered worker{'s' * (others > 1)}"
        verb = f"joined run {joined.run} beside {workers}" if others else f"resumed run {joined.run}"
        adopted = ", and what scrapy-redis had seen" if joined.adopted else ""
        afresh = "" if others else ". SCHEDULER_FLUSH_ON_START = True starts afresh"
        what = f"{verb}; {counts_of(census)}{adopted}{afresh}"
    logger.info("Crawl %r at %s: %s", config.crawl, target, what)
    if joined.words.hold:
        logger.warning("Crawl %r is %s", config.crawl, _HOLDS[joined.words.hold])
    delay = delay_of_each(crawler, config)
    if delay and census.workers > 1:
        logger.warning("%s", delay)
    if joined.limits_changed:
        logger.info(
            "DQ_DOMAIN_DELAY, DQ_DOMAIN_CONCURRENCY or DQ_DOMAIN_LIMITS are not what this run went by: "
            "from now on all workers go by this worker's"
        )
    if joined.spider_args != crawl.spider_args:
        names = differing(joined.spider_args, crawl.spider_args)
        logger.warning(
            "This worker and its run differ in spider arguments (-a): %s. If these are different crawls, "
            "give each a name of its own with DQ_CRAWL, for example '%%(spider)s-%%(category)s'",
            printable(", ".join(names)),
        )


def tell_hold(crawl: str, hold: Hold) -> None:
    """Log that all workers wait, or go on."""
    logger.info("Crawl %r: %s", crawl, _HOLDS[hold])


def mention_end(crawl: str, reason: str, census: Census) -> None:
    """Log what is missing in a run that has ended, and what failed in it for good; and what can be done."""
    if reason == "start_incomplete" and not census.incomplete:
        logger.warning(
            "Crawl %r: a start() had been broken off when this worker found nothing else to do. Since then "
            "its worker has come back, or another one has done the same: `scrapy dq status` tells more",
            crawl,
        )
    elif reason == "start_incomplete":
        logger.error(
            "Crawl %r: everything that was found is done, but %d start() did not come to its end (its worker "
            "was killed or stopped, or it raised), and none with the same arguments as that has. The run "
            "stays open: `scrapy crawl` with those arguments runs start() again, and crawls what is missing; "
            "`scrapy dq complete --crawl %s` lets it end without",
            crawl, census.incomplete, shlex.quote(crawl),
        )  # fmt: skip
    if reason == "start_error":
        logger.error(
            "Crawl %r: start() raised. Unless another worker with the same arguments has completed its own, "
            "the run stays open: the same command runs start() again, and crawls what is missing; "
            "`scrapy dq complete --crawl %s` lets it end without",
            crawl, shlex.quote(crawl),
        )  # fmt: skip
    if reason == "frontier_damaged":
        logger.error(
            "Crawl %r: keys were deleted or evicted while it went on, so that %d requests, or what was seen, "
            "are gone; the rest is done. SCHEDULER_FLUSH_ON_START = True crawls everything again",
            crawl, census.gone,
        )  # fmt: skip
    if reason != "finished":
        return
    for count, what, command, level in (
        (census.failed, "failed for good", "failed", logging.INFO),
        (census.dead, "became dead letters", "dead", logging.WARNING),
    ):
        if count:
            logger.log(
                level, "Of this run's requests, %d %s: `scrapy dq %s --crawl %s` lists them", count, what,
                command, shlex.quote(crawl),
            )  # fmt: skip


def mention_nothing_new(config: Config, reason: str, worker: Worker, counts: StatsCollector) -> None:
    """Log if a run was over before it began: with SCHEDULER_PERSIST, filtered start requests are known."""
    census = worker.census
    if census.done or census.failed or census.dead or worker.over or not counts.get_value(stats.DUPLICATES):
        return
    if config.persist and reason == "finished":
        logger.warning(
            "Crawl %r: nothing was crawled in this run: all that start() yields was seen in earlier ones "
            "(SCHEDULER_PERSIST). Yield what each run is to fetch with dont_filter=True; SitemapSpider does "
            "not",
            config.crawl,
        )


class Progress:
    """Logs now and then how far all workers are together."""

    def __init__(
        self, interval_s: float, census: Callable[[], Census], start_over: Callable[[], bool]
    ) -> None:
        """
        Args:
            interval_s: 0: not at all.
            start_over: tells whether this worker's start() has ended.
        """
        self._interval_s = interval_s
        self._census = census
        self._start_over = start_over
        self._timer: asyncio.TimerHandle | None = None
        self._watch()

    def stop(self) -> None:
        """Log no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        self._since, self._done = time.monotonic(), self._census().done
        if self._interval_s:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._log)

    def _log(self) -> None:
        census = self._census()
        logger.info(
            "All workers together: %.1f pages/s, %d done, %d waiting, %s%d in flight, %d workers%s",
            (census.done - self._done) / (time.monotonic() - self._since),
            census.done,
            census.waiting,
            _delayed(census),
            census.in_flight,
            census.workers,
            "" if self._start_over() else "; start() goes on here",  # it may wait for what never comes
        )
        self._watch()


def counts_of(census: Census) -> str:
    """Return how much there is of a crawl."""
    return f"{census.waiting} waiting, {_delayed(census)}{census.in_flight} in flight, {census.seen} seen"


def _delayed(census: Census) -> str:
    return f"{census.delayed} delayed, " if census.delayed else ""
