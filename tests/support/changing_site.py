"""A site whose pages change, move and disappear. It runs in threads of the test and records every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self


class Hit(NamedTuple):
    """One request, in the order of arrival."""

    path: str
    condition: str
    """The value of the header If-None-Match."""


@dataclass
class Answer:
    """The site's answer to a path. A test may change it at any time."""

    body: str = ""
    status: int = 200
    etag: str = ""
    location: str = ""
    busy: int = 0
    """Number of following requests that get the status 503."""


@dataclass
class ChangingSite:
    """Answers each path in `pages` with its `Answer`, and any other path with 404."""

    pages: dict[str, Answer]
    hits: list[Hit] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def count(self, path: str) -> int:
        """Return the number of requests for *path*."""
        return sum(hit.path == path for hit in self.hits)

    def __enter__(self) -> Self:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.hits.append(Hit(self.path, self.headers["If-None-Match"] or ""))
                answer = site.pages.get(self.path, Answer(status=404))
                status, body = answer.status, answer.body.encode()
                if answer.busy > 0:
                    answer.busy -= 1
                    status = 503
                elif answer.etag and self.headers["If-None-Match"] == answer.etag:
                    status, body = 304, b""
                self.send_response(status)
                if answer.etag:
                    self.send_header("ETag", answer.etag)
                if answer.location:
                    self.send_header("Location", answer.location)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
