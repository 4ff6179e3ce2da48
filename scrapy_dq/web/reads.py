"""Read Redis for all browsers. One read of a subject is called a look; there is one look at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scrapy_dq.frontier.errors import as_unavailable, is_answer
from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.entries import read_failure, read_failures
from scrapy_dq.inspection.history import read_curves
from scrapy_dq.inspection.place import NoSuchCrawl, Place, opened
from scrapy_dq.inspection.snapshot import EVERY_S, MAX_MEMBERS_READ, Watcher
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.text import printable
from scrapy_dq.web import shown

logger = logging.getLogger(__name__)
PATIENCE_S = 25.0
"""Seconds for which a browser's request waits for a look."""
PAUSE = 49
"""After a look, its crawl is not read for 49 times the look's duration. So looks take 2 % of the time."""
MAX_PAUSE_S = 2.0
"""Maximum number of seconds for which other crawls are not read after a look. So a large crawl does not hold
up looks at the others."""
AFTER_NO_ANSWER_S = 2.0
"""Seconds for which no crawl is read after a look that Redis did not answer."""
HISTORY, HISTORY_EVERY_S = ("history", "days"), 8.0
"""Kinds of subjects, and the seconds for which a look at them is fresh. Workers add a sample every 10 s."""
WANTED_S = 15.0
"""Seconds for which the newest look is kept after the last request for it."""
MAX_SUBJECTS = 200
MAX_ROWS = 1000


class Subject(NamedTuple):
    """The data that a browser asks for."""

    kind: str
    """crawls, crawl, failed, dead, failed_one, dead_one, history (three hours) or days."""
    crawl: str = ""
    entry_id: str = ""


@dataclass(frozen=True)
class Result:
    """The result of the newest successful look, and the error of a later one."""

    at: float = 0.0
    """Time of the data, by this process's monotonic clock."""
    body: str = ""
    """JSON, or "" if no look has succeeded."""
    error: str = ""
    found: bool = True
    """Whether the crawl, and the request if one was asked for, exist."""


class Busy(Exception):
    """Browsers ask for too many different subjects at the same time."""


class _Kept:
    """A subject that a browser has asked for."""

    def __init__(self) -> None:
        self.result = Result()
        self.read_at = 0.0
        self.asked_at = 0.0
        self.read: Callable[[], Any] | None = None
        """Reads the subject, and remembers earlier reads to compute rates."""
        self.task: asyncio.Task[None] | None = None
        """The next look, which all waiting browsers share."""


class Reads:
    """Reads Redis in a thread when a browser asks, at a limited pace."""

    def __init__(self, config: Config) -> None:
        self.crawls = CrawlList()
        self._closed = False
        self._config = config
        self._stack = ExitStack()
        self._place: Place | None = None
        self._kept: dict[Subject, _Kept] = {}
        self._rests: dict[str, float] = {}
        """By crawl: the time before which it is not read again."""
        self._rest = 0.0
        """The time before which no crawl is read."""
        self._turn = asyncio.Lock()
        self._threads = ThreadPoolExecutor(1, "dq-looks")

    async def newest(self, subject: Subject, within_s: float = PATIENCE_S) -> Result:
        """Return a fresh result, or wait for the next look; after *within_s*, return the old result.

        Raises:
            Busy: browsers ask for too many different subjects.
        """
        now = time.monotonic()
        kept = self._keep(subject, now)
        most_age_s = HISTORY_EVERY_S if subject.kind in HISTORY else EVERY_S
        is_fresh = kept.result.body and not kept.result.error and now - kept.result.at <= most_age_s
        if not (is_fresh or self._closed):
            if kept.task is None:
                kept.task = asyncio.ensure_future(self._read_in_turn(subject, kept))
            await asyncio.wait([kept.task], timeout=within_s)
        return kept.result

    async def call(self, crawl: str, change: Callable[[Place], Any]) -> Any:
        """Call *change* for a crawl immediately, in a separate thread, and return its result.

        Raises:
            FrontierError, NoSuchCrawl: *change* failed.
        """

        def work() -> Any:
            with as_unavailable():
                return change(self._at(crawl))

        if self._place is None:
            await self.open()  # this waits for a look in progress
        return await asyncio.to_thread(work)

    def forget(self, crawl: str) -> None:
        """Drop the results of a crawl that was changed, except its overview, which is soon read again."""
        for subject, kept in self._kept.items():
            if subject.crawl == crawl and subject.kind != "crawl":
                kept.result = Result()

    async def open(self) -> str:
        """Connect, and return the address of Redis, without a password.

        Raises:
            FrontierError, ConfigError: Redis is not usable.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, self._open)
        assert self._place is not None
        return self._place.target

    async def close(self) -> None:
        """End all requests that wait for a look, and close the client; may be called twice."""
        if self._closed:
            return
        self._closed = True
        tasks = [kept.task for kept in self._kept.values() if kept.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._threads, self._stack.close)
        self._threads.shutdown(wait=False)

    def _keep(self, subject: Subject, now: float) -> _Kept:
        """Return the record of *subject*, and drop subjects that no browser asks for any more."""
        for other in [each for each, kept in self._kept.items() if now - kept.asked_at > WANTED_S]:
            if self._kept[other].task is None:
                del self._kept[other]
        if subject not in self._kept and len(self._kept) >= MAX_SUBJECTS:
            raise Busy(f"more than {MAX_SUBJECTS} crawls or requests are looked at")
        kept = self._kept.setdefault(subject, _Kept())
        kept.asked_at = now
        return kept

    async def _read_in_turn(self, subject: Subject, kept: _Kept) -> None:
        """Wait for the turn of *subject*, and look once. The look that has waited longest comes first."""
        try:
            while True:
                await _sleep_until(max(kept.read_at + EVERY_S, self._rests.get(subject.crawl, 0.0)))
                async with self._turn:
                    await _sleep_until(self._rest)
                    if self._rests.get(subject.crawl, 0.0) <= time.monotonic():
                        await self._read_now(subject, kept)
                        return
                # Another look at the same crawl came first.
        finally:
            kept.task = None

    async def _read_now(self, subject: Subject, kept: _Kept) -> None:
        began = time.monotonic()
        kept.result, answered = await self._in_thread(subject, kept)
        now = kept.read_at = time.monotonic()
        # A look without an answer spent its time waiting, not in Redis.
        pause_s = PAUSE * (now - began) if answered else AFTER_NO_ANSWER_S
        self._rests = {crawl: until for crawl, until in self._rests.items() if until > now}
        self._rests[subject.crawl] = now + pause_s
        self._rest = now + min(pause_s, MAX_PAUSE_S)

    async def _in_thread(self, subject: Subject, kept: _Kept) -> tuple[Result, bool]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, subject, kept)

    def _read(self, subject: Subject, kept: _Kept) -> tuple[Result, bool]:
        """Read Redis in this thread; return the result, and whether Redis answered."""
        before = kept.result
        try:
            with as_unavailable():
                self._open()
                kept.read = kept.read or self._reader_of(subject)
                found = kept.read()
            if found is not None:
                return Result(at=time.monotonic(), body=json.dumps(found)), True
            error = "the request is not stored any more: it may have been retried, or the run has ended"
        except NoSuchCrawl as absent:
            error = str(absent)
        except FrontierUnavailable as outage:
            # If a key has another type, or this user may not read it, Redis has answered: it is no outage.
            return replace(before, error=printable(str(outage)), found=True), is_answer(outage.__cause__)
        except (FrontierError, ConfigError) as refused:
            return replace(before, error=printable(str(refused)), found=True), self._place is not None
        except Exception as unexpected:  # for example, a record of another version; other looks continue
            logger.exception("the web page cannot read its data of kind %r", subject.kind)
            return replace(before, error=f"it cannot be read ({type(unexpected).__name__})"), True
        kept.read = None
        return Result(error=printable(error), found=False), True

    def _open(self) -> None:
        if self._place is None:
            self._place = self._stack.enter_context(opened(self._config, any_node=True))

    def _at(self, crawl: str) -> Place:
        assert self._place is not None
        return replace(self._place, config=replace(self._config, crawl=crawl))

    def _reader_of(self, subject: Subject) -> Callable[[], Any]:
        """Return a function that reads *subject*; it returns None if the subject does not exist."""
        place = self._at(subject.crawl)
        kind, _, of_one = subject.kind.partition("_")
        if of_one:
            entry_id = bytes.fromhex(subject.entry_id)
            return lambda: shown.full(read_failure(place, kind, entry_id))
        if kind in ("failed", "dead"):
            return lambda: read_failures(place, kind, MAX_ROWS)
        if kind in HISTORY:
            return lambda: read_curves(place, minutes=kind == "days")
        if kind == "crawls":
            return lambda: shown.crawls(self.crawls.refresh(place), place.target)
        watcher = Watcher(place, most_members=MAX_MEMBERS_READ)

        def read() -> dict[str, Any]:
            found = watcher.snapshot(turn=True, partitions=True)
            if not found.exists:
                raise place.no_such_crawl(hint=False)
            return shown.crawl(found)

        return read


async def _sleep_until(at: float) -> None:
    if (left_s := at - time.monotonic()) > 0:
        await asyncio.sleep(left_s)
