"""`scrapy dq metrics`: the figures of crawls for Prometheus, printed once, or served."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import listening, looking
from scrapy_dq.commands.output.display import print_json
from scrapy_dq.commands.subcommand import DONE, Subcommand
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


class PrometheusMetrics(Subcommand):
    """The crawls' figures for Prometheus.

    Prints the metrics of a spider's crawl, or of all crawls in the Redis of this project, in the text
    format of Prometheus; with --port, serves them at /metrics, until Ctrl-C.
    """

    name = "metrics"
    arguments = "[<spider>]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        listening.add_options(
            parser, None, "serve them on this port; 0: any that is free", "Prometheus needs to read"
        )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with listening.needing("metrics", "the metrics need prometheus_client"):
            from scrapy_dq.inspection.metrics import Metrics
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
    with listening.needing("web", "to serve the metrics, Starlette and uvicorn are needed"):
        import uvicorn  # noqa: F401  # `server_of` does, later

        from scrapy_dq.web.asgi import metrics_app
    access = Access.of(listening.token_of(options, "metrics"), False, ())
    with listening.serving(options) as (listener, address), opened as place:
        listening.announce(options, f"{address}metrics", place.target, "Metrics of crawls")
        server = listening.server_of(metrics_app(access, lambda: metrics.text(place)))
        asyncio.run(server.serve(sockets=[listener]))
