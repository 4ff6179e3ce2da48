"""The bookshop: a small web site for the loopback interface, made for this example.

    python -m bookshop.site --port 0 --latency 0.02 --log visits.jsonl
    python -m bookshop.site --changing
    python -m bookshop.site --broken /product/7

prints its URL and serves until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import time
import zlib
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from bookshop.catalogue import PER_PAGE, Catalogue, Product

_ROUTE = re.compile(r"/(?:(category|product)/(\d+)(?:\?page=(\d+))?)?")


class Shop:
    """Turns a path into a page."""

    def __init__(self, catalogue: Catalogue, changing: bool = False) -> None:
        """*changing*: while the shop is open, the stock of most books changes, more or less often."""
        self.catalogue = catalogue
        self._opened = time.monotonic() if changing else None

    def page(self, path: str) -> str | None:
        """Return the HTML of *path*, or None when there is no such page."""
        route = _ROUTE.fullmatch(path)
        if route is None or path not in self.catalogue.paths:
            return None
        kind, number, page = route.groups()
        if kind == "category":
            return self._listing(int(number), int(page or 1))
        if kind == "product":
            return self._product(int(number))
        return self._home()

    def _home(self) -> str:
        links = "".join(
            f'<li><a href="{category.path()}">{category.name}</a></li>'
            for category in self.catalogue.categories
        )
        return _html("The Bookshop", f'<ul class="categories">{links}</ul>')

    def _listing(self, number: int, page: int) -> str:
        category = self.catalogue.categories[number]
        shown = category.products[(page - 1) * PER_PAGE : page * PER_PAGE]
        links = "".join(
            f'<li><a href="{product.path}">{product.title}</a> {product.price}</li>' for product in shown
        )
        following = (
            f'<a class="next" href="{category.path(page + 1)}">next</a>' if page < category.pages else ""
        )
        return _html(category.name, f'<ol class="products">{links}</ol>{following}')

    def _product(self, number: int) -> str:
        product = self.catalogue.products[number]
        category = self.catalogue.categories[product.category]
        related = "".join(
            f'<li><a href="{other.path}">{other.title}</a></li>'
            for other in (self.catalogue.products[n] for n in product.related)
        )
        return _html(
            product.title,
            f'<p><a class="category" href="{category.path()}">{category.name}</a></p>'
            f'<p class="price">{product.price}</p><p class="stock">In stock: {self._stock(product)}</p>'
            f'<p class="description">{product.description}</p><p class="upc">{product.upc}</p>'
            f'<ul class="related">{related}</ul>',
        )

    def _stock(self, product: Product) -> int:
        if self._opened is None or product.number % 4 == 0:
            return product.stock
        every_s = 5 * (1 + product.number % 7)
        return product.stock + int((time.monotonic() - self._opened) / every_s) % 10


def _html(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f'<body><p><a href="/">The Bookshop</a></p><h1>{title}</h1>{body}</body></html>'
    )


class Site:
    """Serves a shop over HTTP/1.1 with keep-alive; a page takes *latency* seconds."""

    def __init__(self, shop: Shop, latency: float, log: BinaryIO | None, broken: str = "") -> None:
        """*broken*: the path of a page that answers HTTP 500."""
        self._shop = shop
        self._broken = broken
        self._latency = latency
        self._log = log
        self._open: set[asyncio.StreamWriter] = set()

    async def run(self, port: int) -> None:
        """Serve until SIGINT or SIGTERM; print the URL once connections are accepted."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=512)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
        await stop.wait()
        server.close()
        for writer in self._open:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            # A killed crawler may close its connection at any point.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while await self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                    pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        request, _, headers = head.decode("latin-1").partition("\r\n")
        words = request.split()
        if len(words) != 3:
            return False
        method, path, _ = words
        keep = "connection: close" not in headers.lower()
        status, page = self._find(method, path)
        tag = f'"{zlib.crc32(page.encode()):x}"'
        if status is HTTPStatus.OK and f"if-none-match: {tag}" in headers.lower():
            status, page = HTTPStatus.NOT_MODIFIED, ""
        if status is HTTPStatus.OK and self._latency:
            await asyncio.sleep(self._latency)
        body = page.encode()
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Content-Type: text/html; charset=utf-8\r\n"
            f"ETag: {tag}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode("latin-1")
            + (b"" if method == "HEAD" else body)
        )
        await writer.drain()
        if self._log and status is HTTPStatus.OK:
            self._log.write(json.dumps({"time": round(time.time(), 3), "path": path}).encode() + b"\n")
        return keep

    def _find(self, method: str, path: str) -> tuple[HTTPStatus, str]:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _html("Read only", "")
        if path == self._broken:
            return HTTPStatus.INTERNAL_SERVER_ERROR, _html("This page is broken", "")
        page = self._shop.page(path)
        if page is None:
            return HTTPStatus.NOT_FOUND, _html("No such page", "")
        return HTTPStatus.OK, page


def main() -> int:
    """Serve the shop as the command line says."""
    options = argparse.ArgumentParser(description="Serve the example bookshop on loopback.")
    options.add_argument("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    options.add_argument("--latency", type=float, default=0.02, help="seconds per page (%(default)s)")
    options.add_argument("--seed", type=int, default=1, help="another seed, another shop (%(default)s)")
    options.add_argument("--log", type=Path, help="append a JSON line for each page served")
    options.add_argument("--changing", action="store_true", help="most books are sold, some often, some not")
    options.add_argument("--broken", default="", metavar="PATH", help="the page that answers HTTP 500")
    chosen = options.parse_args()
    with contextlib.ExitStack() as stack:
        # Unbuffered, so that a program that counts the visits can read the file at any time.
        log = stack.enter_context(chosen.log.open("ab", buffering=0)) if chosen.log else None
        shop = Shop(Catalogue(chosen.seed), chosen.changing)
        asyncio.run(Site(shop, chosen.latency, log, chosen.broken).run(chosen.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
