"""One look at Redis at a time, shared by all browsers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scrapy_dq.frontier.errors import as_unavailable, is_answer
from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.inspection.crawl import CrawlWatch
from scrapy_dq.inspection.crawls import CrawlsWatch
from scrapy_dq.inspection.curves import read_curves
from scrapy_dq.inspection.entries import read_failure, read_failures
from scrapy_dq.inspection.place import NoSuchCrawl, Place, opened
from scrapy_dq.inspection.settings import read_stored
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.text import printable
from scrapy_dq.web.shown import full

logger = logging.getLogger(__name__)
EVERY_S = 1.0
OWN_PART = 0.75
"""Most of the time of a look that counts as Python's own: Redis may still send what is being read."""
PATIENCE_S = 25.0
"""How long an answer waits for its turn."""
PAUSE = 49
"""After a look, its crawl is not looked at for so many times as long: looks take 2 % of Redis's time."""
MOST_PAUSE_S = 2.0
"""No crawl is looked at for as long, but at most for this: a costly one does not keep others waiting."""
AFTER_NO_ANSWER_S = 2.0
"""The pause after a look that Redis did not answer."""
HISTORY, HISTORY_EVERY_S = ("history", "days"), 8.0
"""Every 10 s there is a new sample."""
WANTED_S = 15.0
"""How long something is looked at after anybody has asked for it."""
MOST_SUBJECTS = 200
LIVE = ("crawls", "crawl")
"""What is looked at again as long as anybody asks; the rest is looked at once."""
MOST_ROWS = 1000


class Subject(NamedTuple):
    """What is looked at."""

    kind: str
    """crawls, crawl, failed, dead, failed_one, dead_one, stored, history (three hours) or days."""
    crawl: str = ""
    entry_id: str = ""


@dataclass(frozen=True)
class Seen:
    """The result of the newest look, or why there is none that is newer."""

    number: int = 0
    at: float = 0.0
    """Of the data, by this process's monotonic clock."""
    body: str = ""
    """JSON; empty: no look has succeeded."""
    error: str = ""
    found: bool = True
    """False: there is no such crawl, or no such request."""


class Busy(Exception):
    """Too much is asked for at once."""


class Looks:
    """Looks in a thread, as long as anybody asks; in the loop that calls it first."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stack = ExitStack()
        self._place: Place | None = None
        self._watches: dict[Subject, Callable[[], Any]] = {}
        self._seen: dict[Subject, Seen] = {}
        self._asked_at: dict[Subject, float] = {}
        self._pending: set[Subject] = set()
        """What is looked at once."""
        self._looked_at: dict[Subject, float] = {}
        self._rests: dict[str, float] = {}
        """By crawl: until when there is no look at it."""
        self._news = asyncio.Condition()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(1, "dq-looks")
        self.closed = False

    async def newer(self, subject: Subject, than: int = 0, within_s: float = 10.0) -> Seen:
        """Return what was seen in a look after number *than*, or, after *within_s*, the same as before.

        Raises:
            Busy: too many different things are looked at.
        """
        self._start()
        if subject not in self._asked_at and len(self._asked_at) >= MOST_SUBJECTS:
            raise Busy(f"more than {MOST_SUBJECTS} crawls or requests are looked at")
        until = time.monotonic() + within_s
        async with self._news:
            while not self.closed:
                self._asked_at[subject] = time.monotonic()
                seen = self._seen.get(subject, Seen())
                left_s = until - time.monotonic()
                if seen.number > than or left_s <= 0:
                    break
                if subject.kind not in LIVE:
                    self._pending.add(subject)
                self._asked.set()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), min(left_s, WANTED_S / 3))
        return self._seen.get(subject, Seen())

    async def newest(self, subject: Subject, most_age_s: float = EVERY_S) -> Seen:
        """Return what was seen at most *most_age_s* ago, or in the next look."""
        most_age_s = HISTORY_EVERY_S if subject.kind in HISTORY else most_age_s
        seen = self._seen.get(subject, Seen())
        if seen.body and not seen.error and time.monotonic() - seen.at <= most_age_s:
            return seen
        return await self.newer(subject, seen.number, PATIENCE_S)

    async def call(self, crawl: str, change: Callable[[Place], Any]) -> Any:
        """Return what *change* returns for a crawl; in a thread of its own, at once.

        Raises:
            FrontierError, NoSuchCrawl: it failed.
        """

        def work() -> Any:
            with as_unavailable():
                return change(self._at(crawl))

        if self._place is None:
            await self.open()  # which waits for a look that is in progress
        return await asyncio.to_thread(work)

    def forget(self, crawl: str) -> None:
        """Let nobody get what was seen of a crawl before it was changed."""
        for subject in [each for each in self._seen if each.crawl == crawl]:
            if subject.kind != "crawl":
                del self._seen[subject]

    async def open(self) -> str:
        """Connect, and return the address of Redis, without a password.

        Raises:
            FrontierError, ConfigError: it is not usable.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, self._open)
        assert self._place is not None
        return self._place.target

    async def close(self) -> None:
        """End all waiting, and close the client; may be called twice."""
        if self.closed:
            return
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        async with self._news:
            self._news.notify_all()
        await asyncio.get_running_loop().run_in_executor(self._threads, self._stack.close)
        self._threads.shutdown(wait=False)

    def _start(self) -> None:
        if self._task is None and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while True:
            subject, wait_s = self._next(time.monotonic())
            if subject is None:
                self._asked.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), wait_s)
                continue
            number += 1
            before = self._seen.get(subject, Seen())
            seen, answered, took_s = await loop.run_in_executor(self._threads, self._timed, subject, before)
            self._pending.discard(subject)
            async with self._news:
                self._seen[subject] = replace(seen, number=number)
                self._looked_at[subject] = time.monotonic()
                self._news.notify_all()
            # Most of the time of a look without an answer was waiting for one.
            pause_s = PAUSE * took_s if answered else AFTER_NO_ANSWER_S
            await asyncio.sleep(self._rest(subject.crawl, pause_s, time.monotonic()))

    def _rest(self, crawl: str, pause_s: float, now: float) -> float:
        """Let *crawl* rest for *pause_s*; return how long all crawls rest."""
        self._rests = {each: until for each, until in self._rests.items() if until > now}
        self._rests[crawl] = now + pause_s
        return min(pause_s, MOST_PAUSE_S)

    def _next(self, now: float) -> tuple[Subject | None, float]:
        """Return what is to be looked at now, or None, and how long nothing is."""
        for subject in [each for each, at in self._asked_at.items() if now - at > WANTED_S]:
            for noted in (self._asked_at, self._seen, self._looked_at, self._watches):
                noted.pop(subject, None)
            self._pending.discard(subject)
        wanted = [each for each in self._asked_at if each.kind in LIVE or each in self._pending]
        if not wanted:
            return None, WANTED_S
        due = {each: self._looked_at.get(each, 0.0) + EVERY_S for each in wanted}
        left_s = {each: max(due[each], self._rests.get(each.crawl, 0.0)) - now for each in wanted}
        # Of those that are due, the one that has waited longest.
        first = min(wanted, key=lambda each: (max(0.0, left_s[each]), due[each]))
        return (first, 0.0) if left_s[first] <= 0 else (None, left_s[first])

    def _timed(self, subject: Subject, before: Seen) -> tuple[Seen, bool, float]:
        """Look at Redis; also return how long it may have worked for that: as long as the thread waited."""
        began, own_began = time.monotonic(), time.thread_time()
        seen, answered = self._look(subject, before)
        took_s, own_s = time.monotonic() - began, time.thread_time() - own_began
        return seen, answered, took_s - min(own_s, OWN_PART * took_s)

    def _look(self, subject: Subject, before: Seen) -> tuple[Seen, bool]:
        """Look at Redis; return what was seen, and whether it answered; in the thread."""
        try:
            with as_unavailable():
                self._open()
                if subject not in self._watches:
                    self._watches[subject] = self._watch(subject)
                found = self._watches[subject]()
            if found is not None:
                return Seen(at=time.monotonic(), body=json.dumps(found)), True
            error = "it is not there any more: it may have been retried, or the run has ended"
        except NoSuchCrawl as absent:
            error = str(absent)
        except FrontierUnavailable as outage:
            # One key of another type, or one that this user may not read, is no outage.
            return replace(before, error=printable(str(outage)), found=True), is_answer(outage.__cause__)
        except (FrontierError, ConfigError) as refused:
            return replace(before, error=printable(str(refused)), found=True), self._place is not None
        except Exception as unexpected:  # of a record of another version; the others are still looked at
            logger.exception("a look at %s of a crawl failed", subject.kind)
            return replace(before, error=f"it cannot be read ({type(unexpected).__name__})"), True
        self._watches.pop(subject, None)
        return Seen(error=printable(error), found=False), True

    def _open(self) -> None:
        if self._place is None:
            self._place = self._stack.enter_context(opened(self._config, any_node=True))

    def _at(self, crawl: str) -> Place:
        assert self._place is not None
        return replace(self._place, config=replace(self._config, crawl=crawl))

    def _watch(self, subject: Subject) -> Callable[[], Any]:
        """Return what looks at *subject* each time it is called."""
        place = self._at(subject.crawl)
        kind, _, of_one = subject.kind.partition("_")
        if of_one:
            entry_id = bytes.fromhex(subject.entry_id)
            return lambda: full(read_failure(place, kind, entry_id))
        if kind in ("failed", "dead"):
            return lambda: read_failures(place, kind, MOST_ROWS)
        if kind in ("history", "days"):
            return lambda: read_curves(place, minutes=kind == "days")
        if kind == "stored":
            return lambda: read_stored(place)
        return CrawlsWatch(place).look if kind == "crawls" else CrawlWatch(place).look
