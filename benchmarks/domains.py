"""Measures pages per second of many quick domains beside a slow one, with each scheduler. Prints a table.

Run with PYTHONPATH=tests. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.domain_crawl import CONTENDERS, MEMORY, SETTINGS, Crawl, crawl
from benchmarks.redis_here import measured_on
from benchmarks.tables import markdown, ratios, spread, tell, write_json

HEAD = [
    "scheduler", "workers", "quick domains alone, pages/s", "beside the slow domain, pages/s",
    "of its own alone", "of Scrapy's in memory", "slow pages at once", "CPU alone, ms/page: workers", "Redis",
]  # fmt: skip


def table(crawls: Sequence[Crawl], options: argparse.Namespace) -> str:
    """Return the markdown table, with the conditions below it."""
    found = {(c.contender, c.slow, c.repetition): c for c in crawls}

    def rates(name: str, slow: bool) -> list[float]:
        return [found[name, slow, repetition].rate for repetition in range(options.repetitions)]

    rows = []
    for name in options.contenders:
        contender = CONTENDERS[name]
        alone, beside = rates(name, False), rates(name, True)
        own = [c for c in crawls if c.contender == name and not c.slow]
        slow = [c for c in crawls if c.contender == name and c.slow]
        rows.append([
            contender.title,
            str(contender.workers),
            spread(alone),
            spread(beside) + " \\*" * any(c.stopped for c in slow),
            spread(ratios(beside, alone), 2),
            spread(ratios(beside, rates(MEMORY, True)), 2) if MEMORY in options.contenders else "–",
            str(max(c.slow_at_once for c in slow)),
            spread([c.worker_ms for c in own], 2),
            spread([c.redis_ms for c in own], 2),
        ])  # fmt: skip
    legend = _legend(options, any(crawl.stopped for crawl in crawls))
    ran_on = measured_on(("Scrapy", "redis"), "AOF everysec")
    return f"{markdown(HEAD, rows)}\n\n{legend}\n\n{ran_on}."


def _legend(options: argparse.Namespace, stopped: bool) -> str:
    text = (
        f"Medians of {options.repetitions} repetitions (lowest–highest); ratios are within a repetition. "
        f"{options.domains - 1} domains of {options.pages} pages that take {options.latency * 1000:.0f} ms; "
        f"the slow domain has {options.slow_pages}, which take {options.slow_latency:g} s each except the "
        "first page, and is the first in `start_urls`. Only pages of quick domains count, from the first "
        "request of the crawl until the request for the last of these pages, in the site's log. "
        'Scrapy\'s: DownloaderAwarePriorityQueue; "slot" and "none": DQ_PARTITION_BY. '
        f"CONCURRENT_REQUESTS {SETTINGS['CONCURRENT_REQUESTS']}, "
        f"per domain {SETTINGS['CONCURRENT_REQUESTS_PER_DOMAIN']}, per worker."
    )
    if stopped:
        text += f" \\*: stopped after {options.deadline:g} s, before all of them were requested."
    return text


def describe(crawl: Crawl) -> str:
    """Return the result in one line."""
    what = f"{crawl.pages} quick and {crawl.slow_pages} slow pages in {crawl.seconds:.1f} s"
    beside = "beside slow" if crawl.slow else "alone"
    if crawl.slow:
        what += f", up to {crawl.slow_at_once} of these at once"
    notes = ", stopped" * crawl.stopped + f", {crawl.complaints} complaints" * bool(crawl.complaints)
    return (
        f"{crawl.contender:7} {beside:11} #{crawl.repetition}: {what}; {crawl.rate:.0f}/s, "
        f"CPU {crawl.worker_ms:.2f} + {crawl.redis_ms:.2f} ms/page{notes}"
    )


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="PYTHONPATH=tests python -m benchmarks.domains",
        description="Crawl many quick domains with each scheduler, alone and beside one slow domain, and "
        "print the pages per second of the quick ones, as a markdown table.",
        epilog="schedulers:\n"
        + "\n".join(f"  {name:8}{c.title}, workers: {c.workers}" for name, c in CONTENDERS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=5, help="crawls per figure (default: 5)")
    parser.add_argument("--domains", type=int, default=200, help="domains, one of them slow (default: 200)")
    parser.add_argument("--pages", type=int, default=25, help="pages of each fast domain (default: 25)")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds per page there (default: 0.02)")
    parser.add_argument("--slow-pages", type=int, default=500, help="pages of the slow domain (default: 500)")
    parser.add_argument("--slow-latency", type=float, default=5.0, help="seconds per page there (default: 5)")
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds until a crawl is stopped (default: 60)"
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME",
        help="some of the schedulers below (default: all)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every crawl to FILE")
    options = parser.parse_args()
    if options.repetitions < 1 or options.domains < 2 or options.pages < 2:
        parser.error("at least 1 repetition, 2 domains and 2 pages")
    return options


def main() -> None:
    """Run the crawls that the command line asks for."""
    options = parse_args()
    crawls: list[Crawl] = []
    for repetition in range(options.repetitions):
        for name in options.contenders:
            # The order alternates, because earlier crawls may have warmed up or slowed down the machine.
            for slow in (False, True) if repetition % 2 == 0 else (True, False):
                crawls.append(crawl(name, slow, repetition, options))
                tell(describe(crawls[-1]))
                write_json(options.json, [asdict(c) for c in crawls])
    print(table(crawls, options))


if __name__ == "__main__":
    main()
