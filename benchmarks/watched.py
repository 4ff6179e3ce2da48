"""Measures how much a crawl is slowed down by browsers on the page of `scrapy dq web` and by Prometheus.

Run with PYTHONPATH=tests. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode

from benchmarks.cpu import CpuMeter
from benchmarks.crawl import OURS, PAGES, Crawl, crawl
from benchmarks.redis_here import measured_on
from benchmarks.tables import markdown, ratios, spread, tell
from support.web_page import WebPage

LOOK_EVERY_S, SCRAPE_EVERY_S = 1.0, 5.0
HEAD = ["crawl", "pages/s", "CPU, ms/page: worker", "Redis"]


class Page(WebPage):
    """The page of the measured crawl."""

    COMMAND: ClassVar[tuple[str, ...]] = ("web",)  # type: ignore[misc]


@contextmanager
def watched(folder: Path, redis_url: str, name: str, browsers: int) -> Iterator[None]:
    """During the block, open the page of a crawl in *browsers* browsers, and scrape its metrics."""
    ended = threading.Event()
    with ExitStack() as stack:
        page = stack.enter_context(Page(folder, redis_url, "--crawl", name))
        meter = CpuMeter([page.process.pid])
        asked = urlencode({"kind": "crawl", "crawl": name})
        looks = page, f"/data?{asked}", LOOK_EVERY_S, ended
        threads = [threading.Thread(target=_read, args=looks) for _ in range(browsers)]
        threads.append(threading.Thread(target=_read, args=(page, "/metrics", SCRAPE_EVERY_S, ended)))
        for thread in threads:
            thread.start()
        yield
        tell(f"the page took {meter.seconds():.1f} s of CPU")
        ended.set()
        page.process.kill()
        for thread in threads:
            thread.join()


def _read(page: WebPage, path: str, every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        try:
            page.ask(path)
        except (OSError, HTTPException):  # the page is killed at the end
            return


def _row(title: str, crawls: list[Crawl]) -> list[str]:
    worker, redis = ([1000 * seconds / each.pages for each, seconds in zip(crawls, of, strict=True)]
                     for of in ([c.worker_s for c in crawls], [c.redis_s for c in crawls]))  # fmt: skip
    return [title, spread([each.rate for each in crawls]), spread(worker, 2), spread(redis, 2)]


def main() -> None:
    """Crawl without and with watchers, in alternating order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repetitions", type=int, default=5, metavar="N", help="pairs of crawls (default: 5)"
    )
    parser.add_argument("--browsers", type=int, default=20, metavar="N", help="(default: 20)")
    options = parser.parse_args()
    alone, beside = list[Crawl](), list[Crawl]()
    for repetition in range(options.repetitions):
        for is_watched in (False, True) if repetition % 2 == 0 else (True, False):
            run = (lambda *args: watched(*args, options.browsers)) if is_watched else None
            made = crawl(OURS, 0, repetition, beside=run)
            (beside if is_watched else alone).append(made)
            tell(f"#{repetition + 1} {'watched' if is_watched else 'alone'}: {made.rate:,.0f} pages/s")
    title = f"watched by {options.browsers} browsers, and scraped each {SCRAPE_EVERY_S:g} s"
    print(markdown(HEAD, [_row("alone", alone), _row(title, beside)]))
    of_alone = ratios([each.rate for each in beside], [each.rate for each in alone])
    print(f"\nWatched / alone, in {len(alone)} pairs of crawls of {PAGES:,} pages: {spread(of_alone, 3)}.")
    print(f"\n{measured_on(('Scrapy', 'redis'), 'AOF everysec')}.")


if __name__ == "__main__":
    main()
