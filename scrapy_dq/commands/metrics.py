"""`scrapy dq metrics`: the figures of crawls for Prometheus, printed once, or served."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import listening, looking
from scrapy_dq.commands.output.display import print_json
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.extras import pip_install
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import EVERY_S
from scrapy_dq.web.access import Access

if TYPE_CHECKING:
    from scrapy_dq.inspection.metrics import Metrics

LONGEST_S = 60.0
"""Most time that what is printed once may take: with many crawls, each read is a part of them."""
SEARCH_S = 0.5
"""How long crawls are searched for before."""
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
        listening.add_options(
            parser, None, "serve them on this port; 0: any that is free", "Prometheus needs to read"
        )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        try:
            from scrapy_dq.inspection.metrics import Metrics
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            raise CommandError(f"the metrics need prometheus_client: {pip_install('metrics')}") from None
        config = looking.config_named(settings, options)
        named = bool(options.spider or options.crawl)
        metrics = Metrics(CrawlList(config.crawl if named else ""))
        opened = looking.opened(config, any_node=not named)
        if options.port is None:
            _print(metrics, opened, as_json=options.json)
        else:
            _serve(metrics, opened, options)
        return DONE


def _print(metrics: Metrics, opened: AbstractContextManager[Place], *, as_json: bool) -> None:
    """Print them once. That Redis gives no usable answer is what a metric says: the exit status is 0."""
    show = metrics.samples if as_json else metrics.text
    try:
        with opened as place:
            metrics.crawls.find(place, SEARCH_S)
            until, found = time.monotonic() + LONGEST_S, show(place)
            while not metrics.crawls.complete and time.monotonic() < until:
                time.sleep(EVERY_S)
                found = show(place)
    except FrontierError as error:
        print(f"scrapy dq metrics: {error}", file=sys.stderr)
        found = show(None)
    if isinstance(found, bytes):
        print(found.decode(), end="")
    else:
        print_json({"samples": found})


def _serve(metrics: Metrics, opened: AbstractContextManager[Place], options: argparse.Namespace) -> None:
    access = Access.of(listening.token_of(options, "metrics"), False, ())
    with listening.serving(options) as (listener, address), opened as place:
        if options.json:
            print(json.dumps({"address": f"{address}metrics", "redis": place.target}), flush=True)
        else:
            print(f"Metrics of crawls at {place.target}: {address}metrics\nCtrl-C ends it.", flush=True)
        with _Server(listener, access, lambda: metrics.text(place)) as server:
            server.serve_forever()


class _Server(ThreadingHTTPServer):
    """Answers each request in its own thread."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, access: Access, text: Callable[[], bytes]) -> None:
        super().__init__(("", 0), _Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.access = access
        self.text = text

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that has gone is no error of ours."""


class _Answer(BaseHTTPRequestHandler):
    """One request; HTTP 1.0, so that no connection stays open after it."""

    server: _Server
    timeout = CONNECTION_S

    def do_GET(self) -> None:
        from scrapy_dq.inspection.metrics import CONTENT_TYPE

        access = self.server.access
        if self.path != "/metrics":
            self._send(404, b"the metrics are at /metrics\n")
        elif not access.admits(self.headers.get("authorization", "")):
            self._send(401, b"the token is missing or wrong\n")
        elif not (access.token or access.knows(self.headers.get("host", ""))):
            # A page of another site whose name leads here has no token, but it would not need one.
            self._send(421, b"without a token, only localhost or an address names this server\n")
        else:
            self._send(200, self.server.text(), CONTENT_TYPE)

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
