"""`scrapy dq web` and `metrics`: serve crawls of a Redis to browsers, or their figures to Prometheus."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.output.display import print_json
from scrapy_dq.commands.streams import until_interrupted
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.extras import pip_install
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.place import Place, opened, project_settings
from scrapy_dq.inspection.snapshot import EVERY_S
from scrapy_dq.web.access import TOKEN_VARIABLE, Access, given_token, is_loopback, new_token
from scrapy_dq.web.reads import Reads

if TYPE_CHECKING:
    from scrapy_dq.inspection.metrics import Metrics

HOST = "127.0.0.1"
PORT = 6870
POLL_S = 0.1
MAX_REQUESTS = 400
GRACE_S = 3
"""Seconds that requests in progress may still take when the server ends."""
LONGEST_S = 60.0
"""Maximum number of seconds for which `scrapy dq metrics` reads before it prints the metrics once.

One read covers only some of many crawls, so the command may have to read several times.
"""
SEARCH_S = 0.5
"""Seconds for which `scrapy dq metrics` searches for crawls before it prints the metrics."""


class Web(Subcommand):
    """A live web page.

    Serves a web page of all crawls in the Redis of the project, or of a spider, until Ctrl-C. It only reads,
    unless --allow-steering is given.
    """

    name = "web"
    flags = (("--allow-steering", "let users with the token change crawls"),)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_options(
            parser, PORT, f"the port; 0: any free port (default: {PORT})",
            "browsers need",
        )  # fmt: skip
        parser.add_argument(
            "--allow-host", action="append", default=[], metavar="NAME",
            help="another host name of the page (may be repeated)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        token = given = _token_of(options, "crawls")
        if options.allow_steering and not given:
            token = new_token()
        names = [*options.allow_host, _name_of(options.host)]
        config, crawler = common.crawler_named(settings, options)
        crawler_settings = crawler.settings if crawler else project_settings(settings)
        access = Access.of(token, options.allow_steering, names)
        with _needing("web", "the page needs Starlette, uvicorn and prometheus_client"):
            from scrapy_dq.web.asgi import make_app

            page, reads = make_app(config, crawler_settings, access)
            server = _server_of(page)
        crawl = config.crawl if options.spider or options.crawl else ""
        fragment = _fragment(crawl, "" if given else token)
        with _serving(options) as (listener, address):
            asyncio.run(_serve_page(server, reads, listener, f"{address}{fragment}", options))
        return DONE


async def _serve_page(
    server: Any, reads: Reads, listener: socket.socket, address: str, options: argparse.Namespace
) -> None:
    try:
        target = await reads.open()
        _announce(options, address, target, "Crawls")
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not (server.should_exit or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(POLL_S)
        await reads.close()  # otherwise the server would wait for requests that wait for Redis
        await serving
    finally:
        await reads.close()


def _fragment(crawl: str, token: str) -> str:
    """Return the end of the address, from its #. Browsers do not send this part, so no log has the token."""
    parts = [f"token={token}"] if token else []
    parts += [f"/crawl/{quote(crawl, safe='')}"] if crawl else []
    return "#" + "&".join(parts) if parts else ""


class PrometheusMetrics(Subcommand):
    """Metrics for Prometheus.

    Prints the metrics of a crawl, or of all crawls in the project's Redis, for Prometheus. With --port,
    serves them at /metrics until Ctrl-C.
    """

    name = "metrics"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_options(parser, None, "serve them on this port; 0: any free port", "Prometheus needs")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with _needing("metrics", "the metrics need prometheus_client"):
            from scrapy_dq.inspection.metrics import Metrics
        config = common.config_named(settings, options)
        named = bool(options.spider or options.crawl)
        metrics = Metrics(CrawlList(config.crawl if named else ""))
        opened_place = opened(config, any_node=not named)
        if options.port is None:
            _print_metrics(metrics, opened_place, as_json=options.json)
        else:
            _serve_metrics(metrics, opened_place, options)
        return DONE


def _print_metrics(metrics: Metrics, opened_place: AbstractContextManager[Place], *, as_json: bool) -> None:
    """Print the metrics once. The exit status is 0 even without an answer from Redis: dq_up reports it."""
    show = metrics.samples if as_json else metrics.text
    try:
        with opened_place as place:
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


def _serve_metrics(
    metrics: Metrics, opened_place: AbstractContextManager[Place], options: argparse.Namespace
) -> None:
    access = Access.of(_token_of(options, "metrics"), False, ())
    with _serving(options) as (listener, address), opened_place as place:
        with _needing("web", "to serve the metrics, Starlette and uvicorn are needed"):
            from scrapy_dq.web.asgi import metrics_app

            server = _server_of(metrics_app(access, lambda: metrics.text(place)))
        _announce(options, f"{address}metrics", place.target, "Metrics of crawls")
        asyncio.run(server.serve(sockets=[listener]))


def _add_options(parser: argparse.ArgumentParser, port: int | None, port_help: str, readers: str) -> None:
    """Add the options for the address and the token.

    Args:
        readers: subject and verb for the help of the token, such as "browsers need".
    """
    parser.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST})")
    parser.add_argument("--port", type=common.whole(0, 65_535), default=port, help=port_help)
    parser.add_argument(
        "--token-file", default="", metavar="FILE",
        help=f"a file with the token that {readers} (default: DQ_WEB_TOKEN)",
    )  # fmt: skip


def _token_of(options: argparse.Namespace, data: str) -> str:
    """Return the user's token, or "" if there is no token and none is needed.

    Args:
        data: the name of the data that the command serves, for an error.
    Raises:
        WrongUsage: other machines could read the data without a token.
        ConfigError: the token file cannot be read, or is empty.
    """
    token = given_token(options.token_file)
    if not (token or is_loopback(options.host)):
        raise WrongUsage(
            f"--host {options.host} lets other machines read the {data}: give a token with --token-file, or "
            f"in {TOKEN_VARIABLE}"
        )
    return token


@contextmanager
def _needing(extra: str, feature: str) -> Iterator[None]:
    """Report the packages to install if an import in the block fails.

    Args:
        feature: beginning of the message: the feature and the packages that it needs.
    Raises:
        CommandError: one of the packages is not installed.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise CommandError(f"{feature}: {pip_install(extra)}") from None


def _server_of(app: Any) -> Any:
    """Return a server for an ASGI app; it still needs a socket."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
            loop="asyncio", http="h11", proxy_headers=False, limit_concurrency=MAX_REQUESTS,
            timeout_graceful_shutdown=GRACE_S,
        )
    )  # fmt: skip


def _announce(options: argparse.Namespace, address: str, redis: str, title: str) -> None:
    """Print *title* and the address where it is served; with `--json`, print one JSON object instead."""
    if options.json:
        print(json.dumps({"address": address, "redis": redis}), flush=True)
    else:
        print(f"{title} at {redis}: {address}", "Ctrl-C ends it.", sep="\n", flush=True)


@contextmanager
def _serving(options: argparse.Namespace) -> Iterator[tuple[socket.socket, str]]:
    """Yield a listening socket and its URL; Ctrl-C and SIGTERM end the block.

    Raises:
        CommandError: the address cannot be listened on.
    """
    host = options.host
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        # Python appends the address to some errors, and errors of getaddrinfo have no errno.
        reason = str(error.strerror or error).partition(" (while")[0]
        message = f"{host}:{options.port} cannot be listened on: {reason}"
        raise CommandError(f"{message}. --port names another port") from error
    port, name = listener.getsockname()[1], _name_of(host)
    with until_interrupted(), listener:
        yield listener, f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def _name_of(host: str) -> str:
    """Return the name under which others reach a server that listens on *host*."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host
