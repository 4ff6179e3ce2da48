"""DQ_NOTIFY_URL: tells a webhook what somebody should know of a crawl, each kind of event once in a run."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census, FrontierError, FrontierUnavailable
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.text import count_of

logger = logging.getLogger(__name__)
EVERY_S = 20.0
TIMEOUT_S = 10.0
PAUSES_S = (1.0, 5.0, 20.0, 60.0)
"""Before the second try to reach the webhook, the third, ..."""
LAST_S = 5.0
"""How long the end of a crawl waits for the webhook."""


class Notices:
    """One coroutine that asks Redis what is new; nothing waits for it, but the end of the crawl, for LAST_S.

    Of all workers, one gets each notice. CRASH: a notice that this worker got and has not sent is lost.
    """

    def __init__(self, url: str, crawl: str, frontier: Frontier, worker: Worker) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._crawl = crawl
        self._frontier = frontier
        self._worker = worker
        self._sending: set[asyncio.Task[None]] = set()
        self._asking = asyncio.create_task(self._ask_on(), name=f"scrapy-dq notices {worker.id}")

    async def end(self) -> None:
        """Ask once more, after the worker has left: the run may be finished. Send for LAST_S at most."""
        self._asking.cancel()
        with suppress(FrontierError, asyncio.TimeoutError):
            await asyncio.wait_for(self._ask(), LAST_S / 2)
        if self._sending:
            _, unsent = await asyncio.wait(self._sending, timeout=LAST_S)
            for each in unsent:
                each.cancel()
            if unsent:
                logger.warning("DQ_NOTIFY_URL: %s did not answer before the end of the crawl", self._host)

    async def _ask_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self._ask()
            except FrontierUnavailable:
                pass  # the worker reports outages
            except FrontierError as error:
                logger.error("DQ_NOTIFY_URL is told nothing any more: %s", error)
                return
            except Exception:
                logger.exception("Unexpected error while notices were asked for; trying again")

    async def _ask(self) -> None:
        found = await self._frontier.notices()
        if found is None:
            return
        for kind in found.kinds:
            body = notice_of(kind, self._crawl, found.run, found.census, self._worker.id)
            sending = asyncio.create_task(self._send(body), name=f"scrapy-dq notice {kind}")
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send(self, body: bytes) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await asyncio.to_thread(_post, self._url, body)
                return
            except Exception as error:
                # Neither the URL nor its errors: a webhook is a secret.
                reason = str(getattr(error, "code", "")) or type(error).__name__
                if pause_s is None:
                    logger.error("DQ_NOTIFY_URL: %s was not reached (%s)", self._host, reason)
                    return
                logger.debug("DQ_NOTIFY_URL: %s was not reached (%s); trying again", self._host, reason)
                await asyncio.sleep(pause_s)


def notice_of(kind: str, crawl: str, run: int, census: Census, worker_id: str) -> bytes:
    """Return the JSON of a notice: `text` for people (chat services show it), the rest for programs."""
    dead = count_of(census.dead, "dead letter")
    counts = f"{census.done:,} done, {census.failed:,} failed, {dead}, {census.waiting:,} waiting"
    words = {
        "finished": f"has finished: {census.done:,} done, {census.failed:,} failed, {dead}",
        "dead": f"has {dead}: `scrapy dq dead` shows them",
        "deaths": f"has lost its third worker: `scrapy dq events` tells when each died ({counts})",
        "outage": f"goes on after more than a minute without Redis ({counts})",
    }
    about = {
        "event": kind,
        "crawl": crawl,
        "run": run,
        "at": round(time.time(), 3),
        "worker": worker_id,
        "counts": {
            name: getattr(census, name) for name in ("done", "failed", "dead", "waiting", "in_flight")
        },
        "text": f"Crawl {crawl!r} {words.get(kind, kind)}",
    }
    return json.dumps(about).encode()


def _post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "scrapy-dq"}
    asked = urllib.request.Request(url, body, headers, method="POST")
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S):
        pass
