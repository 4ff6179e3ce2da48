"""The ASGI app: its routes, its files, and the answer to each request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from scrapy.settings import Settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.inspection.metrics import CONTENT_TYPE, Metrics
from scrapy_dq.inspection.place import NoSuchCrawl
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import Config
from scrapy_dq.text import printable
from scrapy_dq.web.access import Access
from scrapy_dq.web.commands import ENTRY_ID, BadOrder, execute
from scrapy_dq.web.guard import Guard
from scrapy_dq.web.reads import Busy, Reads, Result, Subject

FILES = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/parts.js": ("parts.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page. They hold no data of a crawl, so anyone who reaches the page may load them."""
KINDS = ("crawls", "crawl", "failed", "dead", "failed_one", "dead_one", "history", "days")
LONGEST_CRAWL = 1_000
STATUSES = ((BadOrder, 400), (NoSuchCrawl, 404), (FrontierUnavailable, 503), (FrontierError, 409))
"""The HTTP status for an order that failed. The first class that matches the error decides."""


def make_app(config: Config, settings: Settings, access: Access) -> tuple[Any, Reads]:
    """Return the app and its reader of Redis, whose `close` ends all requests that wait for a read."""
    reads = Reads(config)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await reads.close()

    async def shown_settings(request: Request) -> Response:
        return JSONResponse({"settings": settings_of(config), "steering": access.steering})

    site = _Site(settings, reads)
    routes = [Route(path, _file(*file)) for path, file in FILES.items()]
    routes += [
        Route("/data", site.data),
        Route("/settings", shown_settings),
        Route("/metrics", site.metrics),
        Route("/do", site.do, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), access, FILES.__contains__), reads


def metrics_app(access: Access, text: Callable[[], bytes]) -> Any:
    """Return an app that serves only the metrics, at /metrics; *text* returns them."""

    async def metrics(request: Request) -> Response:
        return Response(await asyncio.to_thread(text), headers={"Content-Type": CONTENT_TYPE})

    return Guard(Starlette(routes=[Route("/metrics", metrics)]), access, lambda path: False, any_host=True)


class _Site:
    """Answers requests that the guard let pass."""

    def __init__(self, settings: Settings, reads: Reads) -> None:
        self._settings = settings
        self._reads = reads
        self._metrics = Metrics(reads.crawls)

    async def data(self, request: Request) -> Response:
        """Return the newest read of the data if it is fresh; otherwise wait for the next read.

        An open page asks every second. All browsers share the reads.
        """
        subject = _subject(request)
        if subject is None:
            return _refusal(400, "there is no such data")
        try:
            result = await self._reads.newest(subject)
        except Busy as error:
            return _refusal(503, str(error))
        return Response(envelope(result), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all crawls, for Prometheus."""
        try:
            text = await self._reads.call("", self._metrics.text)
        except FrontierError:  # no connection yet
            text = await asyncio.to_thread(self._metrics.text, None)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def do(self, request: Request) -> Response:
        """Change a crawl, and report the result."""
        try:
            order = await request.json()
        except (ValueError, RecursionError):
            return _refusal(400, "the body is not JSON")
        if not isinstance(order, dict) or not _is_crawl(order.get("crawl")):
            return _refusal(400, "the body must be an object that names a crawl")
        try:
            done = await self._reads.call(order["crawl"], lambda place: execute(place, self._settings, order))
        except (BadOrder, NoSuchCrawl, FrontierError) as error:
            return _refusal(next(status for kind, status in STATUSES if isinstance(error, kind)), str(error))
        self._reads.forget(order["crawl"])
        return JSONResponse({"done": done})


def envelope(result: Result) -> str:
    """Return the result of a read as JSON, with its age."""
    age_s = f"{time.monotonic() - result.at:.3f}" if result.body else "null"
    error, found = json.dumps(result.error), json.dumps(result.found)
    return f'{{"age_s": {age_s}, "error": {error}, "found": {found}, "look": {result.body or "null"}}}'


def _refusal(status: int, error: str) -> Response:
    return JSONResponse({"error": printable(error, 1_000)}, status)


def _subject(request: Request) -> Subject | None:
    """Return the subject of a request; None: there is no such subject."""
    asked = request.query_params
    kind, crawl, entry_id = (asked.get(name, "") for name in ("kind", "crawl", "id"))
    if kind not in KINDS or (kind != "crawls" and not _is_crawl(crawl)):
        return None
    if kind.endswith("_one") != bool(entry_id) or (entry_id and not ENTRY_ID.fullmatch(entry_id)):
        return None
    return Subject(kind, "" if kind == "crawls" else crawl, entry_id)


def _is_crawl(name: Any) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_CRAWL:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _file(name: str, media_type: str) -> Any:
    """Return an endpoint that sends a file of static/."""
    content = resources.files("scrapy_dq.web").joinpath("static").joinpath(name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return endpoint
