"""A web server that accepts POST requests, as a webhook or a receiver of spans does."""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class PostServer:
    """Keeps accepted posts. Below /drip, an answer never ends. Posts below /moved are redirected."""

    def __init__(self, refused: int = 0) -> None:
        """*refused*: the number of posts that the server answers with status 500 before it accepts others."""
        self.posted: list[tuple[str, bytes]] = []
        """Path and body of each accepted post."""
        self.got = 0
        """Number of GETs."""
        self._refused = refused
        self._ended = threading.Event()
        of = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                of.got += 1
                self._answer(200)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.startswith("/drip"):
                    with suppress(OSError):  # until the client is gone
                        while not of._ended.wait(0.2):
                            self.wfile.write(b"H")
                elif self.path.startswith("/moved"):
                    self._answer(302, Location="/hook")
                elif of._refused:
                    of._refused -= 1
                    self._answer(500)
                else:
                    of.posted.append((self.path, body))
                    self._answer(200)

            def _answer(self, status: int, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the server and end its answers."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
