"""`scrapy dq web`: serve a page of the crawls of a Redis, live, for browsers."""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import Any
from urllib.parse import quote

from scrapy.settings import Settings

from scrapy_dq.commands import listening, looking
from scrapy_dq.commands.subcommand import DONE, Subcommand
from scrapy_dq.inspection.place import project_settings
from scrapy_dq.web.access import Access, new_token
from scrapy_dq.web.looks import Looks

PORT = 6870
LOOK_S = 0.1


class Web(Subcommand):
    """A live web page of the crawls.

    Serves a web page of all crawls in the Redis of this project, or of a spider, until Ctrl-C: counts,
    speed, workers, partitions, failed requests. It only reads, unless --allow-steering is given.
    """

    name = "web"
    arguments = "[<spider>]"
    flags = (
        ("--allow-steering", "users with the token may pause, resume, drain, stop, limit, retry and forget"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        listening.add_options(
            parser, PORT, f"the port; 0: any that is free (default: {PORT})",
            "browsers need to read and to steer",
        )  # fmt: skip
        parser.add_argument(
            "--allow-host", action="append", default=[], metavar="NAME",
            help="a name under which browsers reach the page, such as that of a proxy (may be repeated)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with listening.needing("web", "the page needs Starlette, uvicorn and prometheus_client"):
            import uvicorn  # noqa: F401  # `server_of` does, later

            from scrapy_dq.web.asgi import make_app
        token = given = listening.token_of(options, "crawls")
        if options.allow_steering and not given:
            token = new_token()
        names = [*options.allow_host, listening.name_of(options.host)]
        config, crawler = looking.crawler_named(settings, options)
        crawler_settings = crawler.settings if crawler else project_settings(settings)
        page, looks = make_app(config, crawler_settings, Access.of(token, options.allow_steering, names))
        crawl = config.crawl if options.spider or options.crawl else ""
        fragment = _fragment(crawl, "" if given else token)
        with listening.serving(options) as (listener, address):
            server = listening.server_of(page)
            asyncio.run(_serve(server, looks, listener, f"{address}{fragment}", options))
        return DONE


async def _serve(
    server: Any, looks: Looks, listener: socket.socket, address: str, options: argparse.Namespace
) -> None:
    try:
        target = await looks.open()
        listening.announce(options, address, target, "Crawls")
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not (server.should_exit or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(LOOK_S)
        await looks.close()  # else the server would wait for the requests that wait for a look
        await serving
    finally:
        await looks.close()


def _fragment(crawl: str, token: str) -> str:
    """Return what the page finds behind #: no browser sends it, and no log has it."""
    parts = [f"token={token}"] if token else []
    parts += [f"/crawl/{quote(crawl, safe='')}"] if crawl else []
    return "#" + "&".join(parts) if parts else ""
