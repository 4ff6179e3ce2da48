"""The ASGI app: its routes, its files, and what each request is answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from scrapy.settings import Settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.inspection.metrics import CONTENT_TYPE, Metrics
from scrapy_dq.inspection.place import NoSuchCrawl
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import Config
from scrapy_dq.text import printable
from scrapy_dq.web.access import Access
from scrapy_dq.web.commands import ENTRY_ID, BadOrder, obey
from scrapy_dq.web.guard import MOST_BODY_BYTES, Guard
from scrapy_dq.web.looks import Busy, Looks, Seen, Subject

FILES = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/parts.js": ("parts.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""They hold nothing of a crawl: whoever reaches the page may load them."""
LIVE = ("crawls", "crawl")
"""Kinds that a feed may show."""
MOST_LISTENERS = 100
KEEP_ALIVE_S = 10.0
"""A feed sends a comment so often if it sends nothing else: it finds out that a browser is gone."""
KINDS = ("crawls", "crawl", "failed", "dead", "failed_one", "dead_one", "stored", "history", "days")
LONGEST_CRAWL = 1_000


def make_app(config: Config, settings: Settings, access: Access) -> tuple[Any, Looks]:
    """Return the app, and what looks at Redis for it: close that to end all feeds."""
    looks = Looks(config)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await looks.close()

    site = _Site(config, settings, access, looks)
    routes = [Route(path, _file(*file)) for path, file in FILES.items()]
    routes += [
        Route("/data", site.data),
        Route("/feed", site.feed),
        Route("/settings", site.settings),
        Route("/metrics", site.metrics),
        Route("/do", site.do, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), access, FILES.__contains__), looks


def metrics_app(access: Access, text: Callable[[], bytes]) -> Any:
    """Return an app that has nothing but the metrics, at /metrics; *text* returns them."""

    async def metrics(request: Request) -> Response:
        return Response(await asyncio.to_thread(text), headers={"Content-Type": CONTENT_TYPE})

    return Guard(Starlette(routes=[Route("/metrics", metrics)]), access, lambda path: False, any_host=True)


class _Site:
    """Answers requests that the guard let pass."""

    def __init__(self, config: Config, settings: Settings, access: Access, looks: Looks) -> None:
        self._config = config
        self._settings = settings
        self._access = access
        self._looks = looks
        self._listeners = 0
        self._metrics = Metrics(looks.crawls)

    async def data(self, request: Request) -> Response:
        """Return one look."""
        subject = _subject(request)
        if subject is None:
            return _refusal(400, "there is no such data")
        try:
            seen = await self._looks.newest(subject)
        except Busy as error:
            return _refusal(503, str(error))
        return Response(envelope(seen), media_type="application/json")

    async def feed(self, request: Request) -> Response:
        """Send each look as an event, until browser or server end it."""
        subject = _subject(request)
        if subject is None or subject.kind not in LIVE:
            return _refusal(400, "there is no such feed")
        if self._listeners >= MOST_LISTENERS:
            return _refusal(503, "too many pages are open: close some")
        headers = {"X-Accel-Buffering": "no"}  # for nginx in front of it
        return StreamingResponse(self._events(subject), media_type="text/event-stream", headers=headers)

    async def _events(self, subject: Subject) -> AsyncIterator[str]:
        number = 0
        self._listeners += 1
        try:
            while not self._looks.closed:
                seen = await self._looks.newer(subject, number, KEEP_ALIVE_S)
                yield f"data: {envelope(seen)}\n\n" if seen.number != number else ":\n\n"
                number = seen.number
        finally:
            self._listeners -= 1

    async def settings(self, request: Request) -> Response:
        """Return the settings in force, and what this page may do."""
        found = {"settings": settings_of(self._config), "steering": self._access.steering}
        return JSONResponse(found)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all crawls, for Prometheus."""
        try:
            text = await self._looks.call("", self._metrics.text)
        except FrontierError:  # no connection yet
            text = await asyncio.to_thread(self._metrics.text, None)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def do(self, request: Request) -> Response:
        """Change a crawl, and say what was done."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY_BYTES:
                return _refusal(413, "it is too long")
        try:
            order = json.loads(body)
        except (ValueError, RecursionError):
            return _refusal(400, "it is no JSON")
        if not isinstance(order, dict) or not _is_crawl(order.get("crawl")):
            return _refusal(400, "an object that names a crawl is needed")
        try:
            done = await self._looks.call(order["crawl"], lambda place: obey(place, self._settings, order))
        except BadOrder as error:
            return _refusal(400, str(error))
        except NoSuchCrawl as error:
            return _refusal(404, str(error))
        except FrontierUnavailable as error:
            return _refusal(503, str(error))
        except FrontierError as error:
            return _refusal(409, str(error))
        self._looks.forget(order["crawl"])
        return JSONResponse({"done": done})


def envelope(seen: Seen) -> str:
    """Return what was seen as JSON in one line, with its age."""
    age_s = f"{time.monotonic() - seen.at:.3f}" if seen.body else "null"
    error, found = json.dumps(seen.error), json.dumps(seen.found)
    return f'{{"age_s": {age_s}, "error": {error}, "found": {found}, "look": {seen.body or "null"}}}'


def _refusal(status: int, error: str) -> Response:
    return JSONResponse({"error": printable(error, 1_000)}, status)


def _subject(request: Request) -> Subject | None:
    """Return what a request asks for; None: nothing that there is."""
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
    """Return an endpoint that sends a file of static/, or nothing to a browser that has it."""
    content = resources.files("scrapy_dq.web").joinpath("static").joinpath(name).read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return endpoint
