"""A crawl whose scheduler records its calls, without an outage of Redis or through four outages."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.catalogue import CatalogueSite
from benchmarks.crawl import CONTENDERS, MEMORY, OURS, SETTINGS, SPIDER
from benchmarks.redis_here import start_redis
from benchmarks.timed import Row, read
from support.outages import lines
from support.project import Project
from support.proxy import RedisProxy
from support.waiting import wait_until

PAGES = 10_000
"""The number of pages of the site. It is so large that no crawl comes to its end."""
TIMED = {MEMORY: "benchmarks.timed.TimedMemory", OURS: "benchmarks.timed.TimedOurs"}
BEFORE_S, OUTAGE_S, AFTER_S = 1.0, 2.0, 0.5
BACK_PAGES = 100
"""After Redis is back, the worker has recovered when it has requested this many pages."""

Window = tuple[float, float]


class Watched(NamedTuple):
    """The records of a crawl's worker."""

    rows: dict[str, list[Row]]
    """Rows by method. LOOP has delays of the event loop, COLLECTION has garbage collections (timed.py)."""
    windows: dict[str, Window]
    """The start and end of each outage, including the recovery, on the clock of the rows."""
    pages: int


def watch(name: str, seconds: float) -> Watched:
    """Crawl for *seconds*, with Scrapy's scheduler or ours."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(aof=True)) if name == OURS else None

        def crawl(site: CatalogueSite) -> Mapping[str, Window]:
            time.sleep(seconds)
            return {}

        return _watch(stack, name, redis.url if redis else None, crawl)


def watch_outages() -> Watched:
    """Crawl with our scheduler through each kind of outage, one after the other."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(aof=True))
        # While Redis is dead, the proxy accepts connections and closes them. Refused connections are another
        # outage.
        proxy = stack.enter_context(RedisProxy(redis.url))
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "killed": (redis.kill, redis.start),
            "frozen": (redis.suspend, redis.resume),
            "silent": (proxy.black_hole, proxy.pass_through),
            "refused": (proxy.refuse, proxy.pass_through),
        }

        def outages(site: CatalogueSite) -> Mapping[str, Window]:
            windows = {}
            for name, (begin, end) in ways.items():
                time.sleep(BEFORE_S)
                began = time.monotonic()
                begin()
                time.sleep(OUTAGE_S)
                goal = site.count() + BACK_PAGES
                end()
                wait_until(partial(_has, site, goal), f"the worker is back; Redis was {name}", 20)
                time.sleep(AFTER_S)
                windows[name] = (began, time.monotonic())
            return windows

        return _watch(stack, OURS, proxy.url, outages)


def _has(site: CatalogueSite, pages: int) -> bool:
    return site.count() >= pages


def _watch(
    stack: ExitStack, name: str, redis_url: str | None, crawl: Callable[[CatalogueSite], Mapping[str, Window]]
) -> Watched:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-blocking-")))
    site = stack.enter_context(CatalogueSite(PAGES))
    project = Project(
        folder / "project",
        [site.start_url],
        redis_url=redis_url,
        settings={**SETTINGS, **CONTENDERS[name].settings, "NOTES": str(folder), "SCHEDULER": TIMED[name]},
        spider=SPIDER,
    )
    stack.callback(project.close)
    worker = project.start_worker()
    wait_until(lambda: site.count() or not worker.running, "the first request", 20)
    windows = crawl(site)
    pages = site.count()
    if not worker.running or pages >= PAGES:
        raise RuntimeError(f"the crawl ended too early:\n{worker.text[-2000:]}")
    worker.terminate()
    worker.wait(30)
    if wrong := lines(worker, "ERROR", "CRITICAL"):
        raise RuntimeError(f"the worker has logged: {wrong}")
    return Watched(read(folder), dict(windows), pages)
