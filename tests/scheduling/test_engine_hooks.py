"""engine_hooks.py checks Scrapy's engine, and reports what happens to its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import scrapy
from scrapy.core.scheduler import BaseScheduler, Scheduler
from scrapy.crawler import Crawler
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter

from scrapy_dq.scheduling.engine_hooks import EngineHooks, UnsupportedScrapy
from scrapy_dq.scheduling.in_progress import Outcome
from scrapy_dq.scheduling.session import Session
from support.given import MakeProject
from support.waiting import free_port

# Each engine double lacks one part that a future Scrapy might change.
BROKEN_ENGINES = {
    "engine._slot": {"_slot": None},
    "engine._slot.inprogress": {"_slot.inprogress": []},
    "engine._slot.remove_request": {"_slot.remove_request": ...},
    "engine._slot.nextcall.schedule": {"_slot.nextcall": SimpleNamespace()},
    "engine._slot.closing": {"_slot.closing": ...},
    "engine._slot.scheduler": {"_slot.scheduler": ...},
    "engine.running": {"running": ...},
    "engine.paused": {"paused": ...},
    "engine.scraper.handle_spider_error": {"scraper.handle_spider_error": ...},
    "engine.scraper.handle_spider_output_async": {"scraper.handle_spider_output_async": ...},
    "engine.scraper.call_spider_async": {"scraper.call_spider_async": ...},
    "engine._start": {"_start": None},
    "engine.close_spider": {"close_spider": ...},
    "engine._handle_downloader_output": {"_handle_downloader_output": ...},
}


def make_engine() -> SimpleNamespace:
    def call(*_: Any) -> None:
        pass

    async def start() -> AsyncIterator[Any]:
        yield None

    return SimpleNamespace(
        _slot=SimpleNamespace(
            inprogress=set(),
            nextcall=SimpleNamespace(schedule=call),
            closing=None,
            remove_request=call,
            scheduler=SimpleNamespace(next_request=call),
        ),
        scraper=SimpleNamespace(
            handle_spider_error=call, handle_spider_output_async=call, call_spider_async=call
        ),
        running=True,
        paused=False,
        _start=start(),
        close_spider=call,
        _handle_downloader_output=call,
    )


@pytest.mark.parametrize("part", BROKEN_ENGINES)
def test_a_scrapy_without_a_needed_part_is_refused_by_name(part: str) -> None:
    """UnsupportedScrapy names the missing part, the installed version and the tested versions."""
    engine = make_engine()
    for path, value in BROKEN_ENGINES[part].items():
        *above, name = path.split(".")
        holder: Any = engine
        for step in above:
            holder = getattr(holder, step)
        delattr(holder, name) if value is ... else setattr(holder, name, value)
    with pytest.raises(UnsupportedScrapy) as refused:
        EngineHooks(SimpleNamespace(engine=engine, signals=SignalManager()), lambda *_: None, lambda _: None)
    message = str(refused.value)
    assert part in message
    assert f"Scrapy {scrapy.__version__}" in message
    assert "2.13.4 to 2.19" in message


def test_a_complete_engine_is_accepted_and_reports_requests_that_leave_it() -> None:
    """The double has all parts. The hooks report when a request leaves the downloader and the engine."""
    engine = make_engine()
    left: list[tuple[str, Outcome | None]] = []
    EngineHooks(
        SimpleNamespace(engine=engine, signals=SignalManager()),
        lambda r, outcome, reason: left.append((r.url, outcome)),
        lambda r: left.append((r.url, None)),
    )
    request = scrapy.Request("http://example.com")
    engine._slot.inprogress.add(request)
    engine._handle_downloader_output(None, request)
    engine._slot.inprogress.remove(request)
    assert left == [(request.url, None), (request.url, Outcome.DONE)]


def test_downloads_that_are_given_up_leave_once_and_their_responses_are_dropped() -> None:
    """A page in its callback is not given up. Without a list of active downloads, nothing is given up."""
    engine = make_engine()
    pages = [scrapy.Request(f"http://example.com/{name}") for name in ("slow", "parsed")]
    output: list[Any] = []
    left = []
    engine._slot.remove_request = lambda request: engine._slot.inprogress.remove(request)
    engine._handle_downloader_output = lambda result, request: output.append(result)
    engine.downloader = SimpleNamespace()
    settlement = EngineHooks(
        SimpleNamespace(engine=engine, signals=SignalManager()),
        lambda request, outcome, _: left.append((request.url, outcome)),
        lambda request: left.append((request.url, None)),
    )
    engine._slot.inprogress.update(pages)
    assert settlement.give_up_downloads() == 0
    engine.downloader.active = {pages[0]}
    assert settlement.give_up_downloads() == 1
    assert left == [("http://example.com/slow", Outcome.INTERRUPTED)]
    engine._handle_downloader_output("late", pages[0])
    for page in pages:
        engine._slot.remove_request(page)
    assert left[1:] == [("http://example.com/parsed", Outcome.DONE)]
    assert output == []
    assert not engine._slot.inprogress


def test_a_redirect_or_retry_is_the_child_of_the_request_that_became_it() -> None:
    """The old request is the parent of the new one, even while other requests are in progress."""
    engine = make_engine()
    settlement = EngineHooks(
        SimpleNamespace(engine=engine, signals=SignalManager()), lambda *_: None, lambda _: None
    )
    old, new = scrapy.Request("http://example.com/old"), scrapy.Request("http://example.com/new")
    engine._handle_downloader_output(new, old)
    assert settlement.parent_of(new) is old
    assert settlement.parent_of(old) is None


def test_no_hook_of_scrapy_shows_when_a_request_is_done() -> None:
    """If this fails, a new Scrapy has such a hook. scrapy_dq should use it: docs/internals/settlement.md."""
    for cls in (BaseScheduler, Scheduler):
        assert not [name for name in dir(cls) if name.startswith("finish") or name.endswith("_finished")]


def test_an_unsupported_scrapy_is_one_error_line_and_no_connection(
    caplog: pytest.LogCaptureFixture, make_project: MakeProject
) -> None:
    """The scheduler does not open, and does not connect to Redis. It can still be closed."""

    class AnySpider(scrapy.Spider):
        name = "any"

    async def open_and_close() -> None:
        crawler = Crawler(AnySpider, {"REDIS_URL": f"redis://127.0.0.1:{free_port()}"})
        crawler.spider = AnySpider.from_crawler(crawler)
        crawler.stats = MemoryStatsCollector(crawler)
        crawler.request_fingerprinter = RequestFingerprinter(crawler)
        crawler.engine = SimpleNamespace()
        session = Session.from_crawler(crawler)
        try:
            with pytest.raises(UnsupportedScrapy):
                await session.open(SimpleNamespace(settled=None, downloaded=None))
        finally:
            await session.close("start_error")

    with caplog.at_level(logging.ERROR):
        asyncio.run(open_and_close())
    assert [record.name for record in caplog.records] == ["scrapy_dq.scheduling.session"]
    assert "engine._slot.inprogress of Scrapy" in caplog.text
