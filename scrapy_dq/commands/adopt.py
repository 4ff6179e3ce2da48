"""`scrapy dq adopt`: take over a crawl of scrapy-redis in the same Redis, or of Scrapy from its JOBDIR."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_dq.adoption.jobdir import JobDir
from scrapy_dq.adoption.takeover import Options, Report, take_over
from scrapy_dq.commands import common
from scrapy_dq.commands.input.confirm import continue_hint
from scrapy_dq.commands.output.display import ProgressBar, print_found
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError, Subcommand
from scrapy_dq.scheduling.scheduler import Scheduler
from scrapy_dq.text import count_of

MAX_REASONS = 5
_OF_SCRAPY_REDIS = ("trust_pickle", "delete_source")


class Adopt(Subcommand):
    """Take over a crawl of scrapy-redis, or from a JOBDIR.

    Takes over a crawl of scrapy-redis, or of Scrapy with a JOBDIR: its requests, and the fingerprints of its
    dupefilter. Stop its workers first. The source does not change. A second adoption stores only
    missing requests and fingerprints.
    """

    name = "adopt"
    arguments = "<spider>"
    flags = (
        (
            "--trust-pickle",
            "read pickles as plain data; nothing is imported or called",
        ),
        ("--delete-source", "delete the old queue and dupefilter at the end"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--jobdir", default="", metavar="DIR", help="the JOBDIR of Scrapy's own scheduler"
        )
        parser.add_argument(
            "--queue", choices=("fifo", "lifo"), default="",
            help="order of a queue in a LIST or in SQLite (default: by SCHEDULER_QUEUE_CLASS or "
            "SCHEDULER_DISK_QUEUE)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        if options.jobdir and (given := [name for name in _OF_SCRAPY_REDIS if getattr(options, name)]):
            raise CommandError(f"--{given[0].replace('_', '-')} is for scrapy-redis, and not for a JOBDIR")
        crawler, _ = common.spider_named(settings, options)
        more = {name: getattr(options, name) for name in _OF_SCRAPY_REDIS}
        chosen = Options(jobdir=options.jobdir, queue=options.queue, **more)
        with ProgressBar() as bar:
            report = asyncio.run(take_over(crawler, chosen, bar, bar.say))
        print_found(
            _found(report), options.json, _rows(report), _advice(report, crawler, continue_hint(options))
        )
        return DONE if report.complete and not report.nothing else FAILED


def _found(report: Report) -> dict[str, Any]:
    counts = report.counts
    return {
        "crawl": report.config.crawl,
        "redis": report.target,
        "complete": report.complete,
        "doubt": report.doubt or None,
        "adopted": counts.adopted,
        "known": counts.known,
        "dead": counts.dead,
        "fingerprints": counts.fingerprints,
        "no_fingerprints": counts.invalid_fingerprints,
        "reasons": {reason: count for reason, count in counts.reasons.most_common() if count > 0},
        "deleted": report.deleted,
    }


def _rows(report: Report) -> Iterator[tuple[str, int]]:
    counts = report.counts
    if not report.nothing:
        yield "requests adopted", counts.adopted
        yield "already seen", counts.known
        yield "dead letters", counts.dead
        yield "fingerprints", counts.fingerprints
    if counts.invalid_fingerprints:
        yield "skipped, not fingerprints", counts.invalid_fingerprints


def _advice(report: Report, crawler: Crawler, continue_hint: str) -> Iterator[str]:
    """Yield advice for the user."""
    settings, config, source = crawler.settings, report.config, report.source
    for reason, count in report.counts.reasons.most_common(MAX_REASONS):
        if count > 0:
            yield f"{count_of(count, 'dead letter')}: {reason}"
    if report.nothing:
        yield f"There is nothing to adopt: neither {source.queue.key} nor {source.dupefilter.key} exists."
        if config.embedded and not isinstance(source, JobDir):
            yield (
                "This project names no Redis, so its embedded one was searched; scrapy-redis would have "
                "used localhost:6379. -s REDIS_URL=redis://localhost:6379 searches there."
            )
    elif missing := [each.key for each in (source.queue, source.dupefilter) if not each.size]:
        yield f"{missing[0]} is empty, or does not exist. If its name is different, use that name."
    if report.changed:
        yield (
            f"{source.queue.key} has changed during the adoption: a worker of its crawl is running. Stop it, "
            f"and run this again: some requests are missing."
        )
    if not source.closed:
        yield (
            "The crawl of this JOBDIR was interrupted: the pages that it was downloading are missing, and "
            "some adopted requests may be done."
        )
    if report.disturbed:
        yield "Redis has lost its newest data, or was frozen. Run this again: requests may be missing."
    if report.doubt:
        yield f"{report.doubt}. Until this command is certain, it does not delete the source: run it again."
    if report.counts.has_dead:
        yield (
            "Dead letters could not be decoded as requests of this spider. If this is true of all requests, "
            "check that SCHEDULER_SERIALIZER is the one that wrote them. Fix the cause and run this again. "
            "Until then, the source is not deleted."
        )
    if not config.order.startswith(source.served):
        yield (
            f"This queue was served {source.served}, but DQ_ORDER is {config.order.value!r}: the "
            f"requests are served in a different order."
        )
    # Not issubclass(): Scrapy treats every class with a scheduler's methods as a subclass.
    if Scheduler not in load_object(settings["SCHEDULER"]).__mro__:
        yield "Set SCHEDULER and DUPEFILTER_CLASS of scrapy_dq, or its add-on, before you crawl."
    if config.flush_on_start and not report.nothing:
        yield "SCHEDULER_FLUSH_ON_START is set: the next crawl would delete what was adopted. Unset it first."
    if report.complete and not report.nothing:
        yield continue_hint
