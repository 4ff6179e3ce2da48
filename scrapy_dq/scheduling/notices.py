"""DQ_NOTIFY_URL: reports important events of a crawl to a webhook, each kind of event once in a run."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from scrapy_dq.frontier.model import Census
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.repeated import Repeated
from scrapy_dq.scheduling.own_thread import within
from scrapy_dq.text import count_of, printable

logger = logging.getLogger(__name__)
EVERY_S = 20.0
TIMEOUT_S = 10.0
"""Maximum number of seconds that one try takes."""
PAUSES_S = (1.0, 5.0, 20.0, 60.0)
"""Pauses before the second and each further try to reach the webhook."""
LAST_S = 5.0
"""How long the end of a crawl waits for the webhook."""


class Notices:
    """Asks Redis for new events, in a coroutine, and sends them to the webhook.

    Only the end of the crawl waits for this work, for at most LAST_S.

    Redis gives each notice to one worker. CRASH: a notice that this worker got and has not sent is lost.
    """

    def __init__(self, url: str, crawl: str, worker: Worker) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._crawl = crawl
        self._worker = worker
        self._sending: set[asyncio.Task[None]] = set()
        self._reason = "no answer yet"
        """The reason of the last failure."""
        self._turn = asyncio.Lock()
        self._polling = Repeated("DQ_NOTIFY_URL gets no events until then", self._poll, EVERY_S)

    async def end(self) -> None:
        """Ask one last time after the worker has left, because then the run may be finished.

        This takes at most LAST_S.
        """
        until = time.monotonic() + LAST_S
        # The periodic calls stop only after the last call, because a pending answer may contain notices,
        # which Redis gives to no other worker.
        await self._polling.call_once(LAST_S)
        if self._sending:
            _, unsent = await asyncio.wait(self._sending, timeout=max(0.0, until - time.monotonic()))
            for each in unsent:
                each.cancel()
            if unsent:
                logger.warning(
                    "DQ_NOTIFY_URL: %s was not notified of %s before the end of the crawl (%s)",
                    self._host, count_of(len(unsent), "event"), self._reason,
                )  # fmt: skip

    async def _poll(self) -> None:
        async with self._turn:
            found = await self._worker.notices()
        if found is None:
            return
        for kind in found.kinds:
            body = notice_of(kind, self._crawl, found.run, found.census, self._worker.id)
            sending = asyncio.create_task(self._send(body), name=f"scrapy-dq notice {kind}")
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send(self, body: bytes) -> None:
        for pause_s in (0.0, *PAUSES_S):
            await asyncio.sleep(pause_s)
            reason = await _posted(self._url, body)
            if not reason:
                return
            self._reason = reason
            logger.info("DQ_NOTIFY_URL: %s was not reached (%s)", self._host, reason)
        logger.error("DQ_NOTIFY_URL: %s was not notified of an event (%s)", self._host, self._reason)


def notice_of(kind: str, crawl: str, run: int, census: Census, worker_id: str) -> bytes:
    """Return the JSON of a notice: `text` for people (chat services show it), the rest for programs."""
    dead = count_of(census.dead, "dead letter")
    counts = f"{census.done:,} done, {census.failed:,} failed, {dead}, {census.waiting:,} waiting"
    option = f"--crawl {shlex.quote(crawl)}"
    again = f": `scrapy dq retry {option} --all` runs them again" if census.failed or census.dead else ""
    words = {
        "finished": f"has finished: {census.done:,} done, {census.failed:,} failed, {dead}{again}",
        "dead": f"has {dead}: `scrapy dq dead {option}` shows them",
        "deaths": f"has lost its third worker: `scrapy dq events {option}` shows when each died ({counts})",
        "outage": f"continues after more than a minute without Redis ({counts})",
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


async def _posted(url: str, body: bytes) -> str:
    """Try once, for at most TIMEOUT_S; return the reason of a failure without the secret URL, else ""."""
    try:
        return await within(TIMEOUT_S, lambda: _post(url, body), "webhook")
    except asyncio.TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, because a redirected POST would become a GET without its body."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(url: str, body: bytes) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": "scrapy-dq"}
    try:
        request = Request(url, body, headers, method="POST")
        with build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return ""
    except HTTPError as error:
        return f"status {error.code}"
    except Exception as error:
        reason = getattr(error, "reason", error)
        return printable(
            reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        )
