"""What a worker logs about the whole crawl: when it opens, at intervals, and at the end."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import time
from collections.abc import Callable, Sequence

from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from scrapy_dq.environment import differing
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import Census, Hold, Joined, Limits, StartQueue, Status
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.feeds import kept_in_process
from scrapy_dq.scheduling.of_each_worker import warnings_of_each_worker
from scrapy_dq.settings import Config, breadth_first_queues, peers, queues_in_vain, start_queue_setting
from scrapy_dq.stats import names as stats
from scrapy_dq.text import CREW_SHOWS, count_of, named_run, printable

logger = logging.getLogger(__name__)
_is_host_and_port = re.compile(r"(?:[^][:/@\s]+|\[[^][]+\]):[0-9]{1,5}").fullmatch
WITHOUT_EFFECT = ("JOBDIR", "SCHEDULER_PRIORITY_QUEUE")
_START_REQUESTS = {
    StartQueue.SHARED: "start requests are served like all others of their priority",
    StartQueue.LIFO: "start requests are served after the others of their priority, the newest first",
}
_EXPLAINED = (
    "finished", "start_incomplete", "start_error", "frontier_damaged", "frontier_lost",
    "frontier_rolled_back", "outbox_lost", "run_over", "max_pages",
    "domain_budget", "cannot_serve", "unserved",
)  # fmt: skip
"""Close reasons of this package: a line of its own says what each means."""
_HOLDS = {
    Hold.NONE: "resumed",
    Hold.PAUSED: "paused; no requests are sent until `scrapy dq resume`",
    Hold.DRAINING: "draining; leased requests are finished, and no more are leased until `scrapy dq resume`",
}


def log_settings(crawler: Crawler, config: Config) -> None:
    """Log which settings do not have the effect that users may expect."""
    _log_settings_without_effect(crawler, config)
    _log_limits_of_ports(config)
    log_feeds(crawler)
    for level, remark in peers.remarks(crawler.settings, config.order):
        logger.log(level, "%s", remark)


def _log_settings_without_effect(crawler: Crawler, config: Config) -> None:
    """Log which settings of the project have no effect here, and which are translated to a DQ_ORDER."""
    settings = crawler.settings
    if understood := breadth_first_queues(settings):
        queues, order = " and ".join(understood), config.order.value
        logger.info("%s: breadth-first, the same as DQ_ORDER = %r", queues, order)
    names = [*WITHOUT_EFFECT, *queues_in_vain(settings, config.order)]
    if names := [name for name in names if (settings.getpriority(name) or 0) > 0 and settings.get(name)]:
        logger.info(
            "These settings have no effect with scrapy_dq.Scheduler: %s. The order is DQ_ORDER = %r, and "
            "the crawl is kept in Redis",
            printable(", ".join(names)),
            config.order.value,
        )
    if config.start_queue in _START_REQUESTS and config.order.by_priority:
        logger.info("%s: %s", start_queue_setting(settings), _START_REQUESTS[config.start_queue])


def _log_limits_of_ports(config: Config) -> None:
    """Log which limits name a port. Not an error: a download slot may have such a name."""
    if names := [name for name in config.domain_limits if _is_host_and_port(name)]:
        logger.warning(
            "DQ_DOMAIN_LIMITS names a port (%s): a partition is a host, without its port, so this limits "
            "nothing, unless a download slot has that name. Name the host alone (%r)",
            printable(", ".join(names)),
            names[0].rpartition(":")[0].strip("[]"),
        )


def log_feeds(crawler: Crawler) -> None:
    """Log which feeds lose items if this worker is killed."""
    if names := kept_in_process(crawler.settings):
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
            what = f"run {joined.run} has ended while this worker joined it: nothing to do"
        elif joined.ended_s is None:
            what = f"run {config.run_name!r} is finished: nothing to do. Another DQ_RUN_NAME starts a new run"
        else:
            left_s = crawl.restart_window_s - joined.ended_s
            what = (
                f"run {joined.run}, with the same arguments, was finished {joined.ended_s:.0f} s ago by "
                f"workers on several hosts: nothing to do for a restarted worker. A new run can start in "
                f"{left_s:.0f} s, or now with another DQ_RUN_NAME"
            )
    elif not joined.resumed:
        what = f"new {run}; {counts_of(census)}"
    else:
        others = census.workers - 1
        workers = f"{others} registered worker{'s' * (others > 1)}"
        verb = f"joined {run} alongside {workers}" if others else f"resumed {run}"
        adopted = ", and what scrapy-redis had seen" if joined.adopted else ""
        hint = "" if others else ". SCHEDULER_FLUSH_ON_START = True starts over"
        what = f"{verb}; {counts_of(census)}{adopted}{hint}"
    # At LOG_LEVEL=WARNING, nothing else says why a worker closes as `finished`, with 0 items.
    level = logging.WARNING if joined.status is Status.FINISHED else logging.INFO
    logger.log(level, "Crawl %r at %s: %s", config.crawl, target, what)
    if joins_other_run(config, joined):
        logger.warning(
            "Crawl %r: %s is not finished, and this worker continues it. Run %r begins when the same command "
            "runs again after that", config.crawl, run, config.run_name, extra={CREW_SHOWS: True},
        )  # fmt: skip
    if joined.loss:
        logger.warning("Crawl %r: %s", config.crawl, joined.loss, extra={CREW_SHOWS: True})
    if joined.words.hold:
        logger.warning("Crawl %r is %s", config.crawl, _HOLDS[joined.words.hold])
    if census.workers > 1:
        for warning in warnings_of_each_worker(crawler, config):
            logger.warning("%s", warning)
    if changes := _changes(joined.limits_before, crawl.limits):
        logger.warning(
            "Crawl %r: the limits of this worker differ from those of the run, and all workers use them from "
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
    """Return each limit that differs, with both values; of single partitions, the first five."""
    if before is None or now is None:
        return []
    rows = [
        ("DQ_DOMAIN_DELAY", before.delay_s, now.delay_s),
        ("DQ_DOMAIN_CONCURRENCY", before.concurrency, now.concurrency),
        ("DQ_DOMAIN_BUDGET", *(f"{of.budget}{'/day' * of.daily}" for of in (before, now))),
    ]
    names = sorted({*before.own, *now.own, *before.own_budgets, *now.own_budgets})
    own = [(f"DQ_DOMAIN_LIMITS of {name}", _own(before, name), _own(now, name)) for name in names]
    own = [row for row in own if row[1] != row[2]]
    found = [f"{name} = {new} (was {old})" for name, old, new in (*rows, *own[:5]) if old != new]
    return found + ([f"and those of {len(own) - 5} more partitions"] if len(own) > 5 else [])


def _own(limits: Limits, partition: str) -> str:
    """Return the limits of a partition as DQ_DOMAIN_LIMITS writes them."""
    values = (*limits.own.get(partition, (None, None)), limits.own_budgets.get(partition))
    named = zip(("delay", "concurrency", "budget"), values, strict=True)
    return ", ".join(f"{name} {value}" for name, value in named if value is not None) or "none"


def log_hold(crawl: str, hold: Hold) -> None:
    """Log that the crawl was paused, drained or resumed."""
    logger.info("Crawl %r: %s", crawl, _HOLDS[hold])


def log_end(
    crawl: str, reason: str, census: Census, starts: Sequence[str] = (), *, on_hold: bool = False
) -> None:
    """Log what a run that has ended lacks, and what the user can do.

    Args:
        starts: the arguments of each start() that is interrupted, as far as they are known.
        on_hold: the crawl is paused or draining.
    """
    if reason == "start_incomplete" and not census.incomplete:
        logger.warning(
            "Crawl %r: a start() was incomplete when this worker found nothing else to do. Since then its "
            "worker has come back, or another worker has completed the same start(): see `scrapy dq status`",
            crawl,
        )
    elif reason == "start_incomplete":
        logger.error(
            "Crawl %r: all requests found are done, but %d start() did not complete (its worker was killed "
            "or stopped, or it raised), and no start() with the same arguments has%s. The run stays open: "
            "`scrapy crawl` with those arguments runs start() again, and crawls what is missing; "
            "`scrapy dq complete --crawl %s` ends the run without that",
            crawl, census.incomplete, printable(f": {'; '.join(starts[:5])}") if starts else "",
            shlex.quote(crawl),
        )  # fmt: skip
    if reason == "start_error":  # Scrapy has logged an ERROR with the traceback
        logger.warning(
            "Crawl %r: start() raised. Unless another worker with the same arguments has completed its own, "
            "the run stays open: the same command runs start() again, and crawls what is missing; "
            "`scrapy dq complete --crawl %s` ends the run without that",
            crawl, shlex.quote(crawl),
        )  # fmt: skip
    if reason == "frontier_damaged":
        logger.error(
            "Crawl %r: keys were deleted or evicted during the run: %d requests, or fingerprints that were "
            "seen, are lost; the rest is done. SCHEDULER_FLUSH_ON_START = True crawls everything again",
            crawl, census.gone,
        )  # fmt: skip
    if reason == "unserved":
        logger.error(
            "Crawl %r: %s became dead letters because no worker has the code for them; the rest is done. "
            "Retry them with the right code",
            crawl, count_of(census.unserved, "request"),
        )  # fmt: skip
    if reason == "max_pages":
        logger.info(
            "Crawl %r: DQ_MAX_PAGES is reached: %d requests are done; %s. What waits stays: the same command "
            "with a larger DQ_MAX_PAGES, or with none, continues",
            crawl, census.pages, counts_of(census),
        )  # fmt: skip
    if reason == "domain_budget":
        logger.info(
            "Crawl %r: all that is left is over the budgets of its partitions: %s. It stays: "
            "`scrapy dq limit <spider> <partition> --budget`, or the same command with a larger "
            "DQ_DOMAIN_BUDGET, lets more of it be crawled",
            crawl, counts_of(census),
        )  # fmt: skip
    if reason not in _EXPLAINED and not census.empty:
        way = "The same command continues"
        if on_hold:
            resume = f"`scrapy dq resume --crawl {shlex.quote(crawl)}`"
            way = f"The crawl is on hold: {resume}, and then the same command, continues"
        logger.info(
            "Crawl %r: this worker stops (%s) before the run has finished: %s. %s",
            crawl, printable(reason, 100), counts_of(census), way,
        )  # fmt: skip


def log_nothing_new(config: Config, reason: str, worker: Worker, counts: StatsCollector) -> None:
    """Log if a run had nothing to crawl: with SCHEDULER_PERSIST, all start requests were duplicates."""
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

    def __init__(
        self, interval_s: float, census: Callable[[], Census], start_over: Callable[[], bool]
    ) -> None:
        """
        Args:
            interval_s: between two log lines (LOGSTATS_INTERVAL); 0: none are logged.
            start_over: returns whether this worker's start() has ended.
        """
        self._interval_s = interval_s
        self._census = census
        self._start_over = start_over
        self._timer: asyncio.TimerHandle | None = None
        self._watch()

    def stop(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        self._since, self._done = time.monotonic(), self._census().done
        if self._interval_s:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._log)

    def _log(self) -> None:
        census = self._census()
        logger.info(
            "All workers together: %.1f pages/s, %d done, %d waiting, %s%d in flight, %s%s",
            (census.done - self._done) / (time.monotonic() - self._since),
            census.done,
            census.waiting,
            _delayed(census),
            census.in_flight,
            count_of(census.workers, "worker"),
            "" if self._start_over() else "; start() still runs here",  # the crawl cannot end before it does
        )
        self._watch()


def counts_of(census: Census) -> str:
    """Return the counts of a crawl, for a log line."""
    return f"{census.waiting} waiting, {_delayed(census)}{census.in_flight} in flight, {census.seen} seen"


def _delayed(census: Census) -> str:
    return f"{census.delayed} delayed, " if census.delayed else ""
