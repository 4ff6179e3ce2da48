"""`scrapy dq metrics`: the figures of crawls for Prometheus, printed once, or served."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.listening import HOST, address_of, listening, port
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.extras import pip_install

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from scrapy_dq.inspection.metrics import Metrics
    from scrapy_dq.inspection.place import Place
    from scrapy_dq.web.access import Access

LONGEST_S = 60.0
"""Most time that what is printed once may take: with many crawls, each read is a part of them."""
MOST_CONNECTIONS = 20
CONNECTION_S = 10.0
"""How long a connection may be idle."""


class PrometheusMetrics(Subcommand):
    """Prints them, or serves them until Ctrl-C or SIGTERM."""

    name = "metrics"
    arguments = "[<spider>]"
    summary = "the crawls' figures for Prometheus"
    description = (
        "Prints the metrics of a spider's crawl, or of all crawls in the Redis of this project, in the text "
        "format of Prometheus; with --port, serves them at /metrics, until Ctrl-C."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--port", type=port, help="serve them on this port; 0: any that is free")
        parser.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST})")
        parser.add_argument(
            "--token-file", default="", metavar="FILE",
            help="a file with the token that Prometheus needs to read (default: DQ_WEB_TOKEN)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        try:
            from scrapy_dq.inspection.metrics import Metrics
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            raise CommandError(f"the metrics need prometheus_client: {pip_install('metrics')}") from None
        config = looking.config_named(settings, options)
        named = bool(options.spider or options.crawl)
        metrics, opened = Metrics(config.crawl if named else ""), looking.opened(config, any_node=not named)
        if options.port is None:
            _print(metrics, opened, as_json=options.json)
        else:
            _serve(metrics, opened, options)
        return DONE


def _print(metrics: Metrics, opened: AbstractContextManager[Place], *, as_json: bool) -> None:
    """Print them once. That Redis gives no usable answer is what a metric says: the exit status is 0."""
    from scrapy_dq.commands.output.display import print_json
    from scrapy_dq.frontier.model import FrontierError
    from scrapy_dq.inspection.measures import SHARED_S

    show = metrics.samples if as_json else metrics.text
    try:
        with opened as place:
            until, found = time.monotonic() + LONGEST_S, show(place)
            while not metrics.complete and time.monotonic() < until:
                time.sleep(SHARED_S)
                found = show(place)
    except FrontierError as error:
        print(f"scrapy dq metrics: {error}", file=sys.stderr)
        found = show(None)
    if isinstance(found, bytes):
        print(found.decode(), end="")
    else:
        print_json({"samples": found})


def _serve(metrics: Metrics, opened: AbstractContextManager[Place], options: argparse.Namespace) -> None:
    from scrapy_dq.inspection.metrics import CONTENT_TYPE
    from scrapy_dq.web.access import TOKEN_VARIABLE, Access, given_token, is_loopback

    token = given_token(options.token_file)
    if not (token or is_loopback(options.host)):
        raise WrongUsage(
            f"--host {options.host} lets other machines read the metrics: give a token with --token-file, or "
            f"in {TOKEN_VARIABLE}"
        )
    access = Access.of(token, False, ())
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with listening(options.host, options.port) as listener, opened as place:
            address = f"{address_of(options.host, listener)}metrics"
            if options.json:
                print(json.dumps({"address": address, "redis": place.target}), flush=True)
            else:
                print(f"Metrics of crawls at {place.target}: {address}\nCtrl-C ends it.", flush=True)
            with _Server(listener, access, lambda: metrics.text(place), CONTENT_TYPE) as server:
                server.serve_forever()
    except KeyboardInterrupt:
        pass  # its only end
    finally:
        signal.signal(signal.SIGTERM, before)


class _Server(ThreadingHTTPServer):
    """Answers what may ask; others, and what comes while there are many connections, it turns away."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, access: Access, text: Callable[[], bytes], content_type: str
    ) -> None:
        super().__init__(("", 0), _Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.access = access
        self.text = text
        self.content_type = content_type
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that has gone is no error of ours."""


class _Answer(BaseHTTPRequestHandler):
    """One request; HTTP 1.0, so that no connection stays open after it."""

    server: _Server
    timeout = CONNECTION_S

    def do_GET(self) -> None:
        access = self.server.access
        if self.path != "/metrics":
            self._send(404, b"the metrics are at /metrics\n")
        elif not access.admits(self.headers.get("authorization", "")):
            self._send(401, b"the token is missing or wrong\n")
        elif not (access.token or access.knows(self.headers.get("host", ""))):
            # A page of another site whose name leads here has no token, but it would not need one.
            self._send(421, b"without a token, only localhost or an address names this server\n")
        else:
            self._send(200, self.server.text(), self.server.content_type)

    def _send(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "scrapy_dq"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus comes every few seconds."""
