"""The process behind `TreeSite`: `python -m support.tree_server '{"pages": 9}'` says its port and serves."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from typing import NamedTuple
from urllib.parse import parse_qsl

from support.tree_site import Hit, Tree


class Answer(NamedTuple):
    """A response to be."""

    body: bytes
    status: int = 200
    delay_s: float = 0.0
    location: str = ""
    content_type: str = "text/html"


class Site:
    """The state in the site's process."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.port = 0
        self._latency_s = tree.latency_s
        self._started = time.monotonic()
        self._hits: Counter[str] = Counter()
        self._log: list[Hit] = []

    def answer(self, host: str, target: str) -> Answer:
        """Count a request and decide its response."""
        if target.startswith("/__"):
            return self._report(target)
        self._hits[target] += 1
        self._log.append(Hit(time.monotonic() - self._started, host, target))
        path, _, query = target.partition("?")
        wishes = dict(parse_qsl(query))
        if self._hits[target] <= int(wishes.get("flaky", 0)):
            return Answer(b"try again", 503)
        delay_s = float(wishes.get("s", 0))
        if "to" in wishes:
            return Answer(b"", 302, delay_s, wishes["to"])
        kind, _, number = path[1:].partition("/")
        if kind in ("p", "r") and number.isdigit() and int(number) < self.tree.pages:
            page = self._page(kind, int(number), self._hits[target])
        else:
            page = Answer(path.encode(), 200 if {"s", "flaky"} & wishes.keys() else 404)
        return page._replace(
            status=int(wishes.get("status", page.status)), delay_s=page.delay_s + delay_s
        )

    def _page(self, kind: str, number: int, times: int) -> Answer:
        tree = self.tree
        if kind == "p" and tree.redirect_every and number % tree.redirect_every == 0:
            return Answer(b"", 302, self._latency_s, f"/r/{number}")
        if tree.flaky_every and number % tree.flaky_every == 0 and times == 1:
            return Answer(b"try again", 503, self._latency_s)
        first = number * tree.fan_out + 1
        links = "".join(
            f'<a href="{self._href(child)}">{child}</a>\n'
            for child in range(first, min(first + tree.fan_out, tree.pages))
        )
        page = f"<html><title>{number}</title><body>\n{links}</body></html>"
        return Answer(page.encode(), delay_s=self._latency_s)

    def _href(self, number: int) -> str:
        hosts = self.tree.hosts
        base = f"http://{hosts[number % len(hosts)]}:{self.port}" if len(hosts) > 1 else ""
        return f"{base}/p/{number}"

    def _report(self, target: str) -> Answer:
        if target == "/__reset":
            self._hits.clear()
            self._log.clear()
        if target.startswith("/__latency/"):
            self._latency_s = float(target.removeprefix("/__latency/"))
        report = self._log if target == "/__log" else self._hits
        return Answer(json.dumps(report).encode(), content_type="application/json")


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one response at a time; any method gets what GET does."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._received = b""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Source: asyncio.Protocol"""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        """Collect until a request is complete. Source: asyncio.Protocol"""
        self._received += data
        self._next()

    def _next(self) -> None:
        head, complete, rest = self._received.partition(b"\r\n\r\n")
        if self._busy or not complete:
            return
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        body_bytes = int(length[1]) if length else 0
        if len(rest) < body_bytes:
            return
        self._received = rest[body_bytes:]
        target = head.split(b" ", 2)[1].decode(errors="replace")
        answer = self._site.answer(self._host, target)
        last = b"connection: close" in head.lower()
        if answer.delay_s:
            self._busy = True
            asyncio.get_running_loop().call_later(answer.delay_s, self._send, answer, last)
        else:
            self._send(answer, last)

    def _send(self, answer: Answer, last: bool) -> None:
        self._busy = False
        if self._transport.is_closing():
            return
        head = f"HTTP/1.1 {answer.status} X\r\nContent-Type: {answer.content_type}\r\n"
        head += f"Content-Length: {len(answer.body)}\r\n"
        if answer.location:
            head += f"Location: {answer.location}\r\n"
        if last:
            head += "Connection: close\r\n"
        self._transport.write(head.encode() + b"\r\n" + answer.body)
        if last:
            self._transport.close()
        else:
            self._next()


async def serve(tree: Tree) -> None:
    """Serve *tree* until standard input closes, which it does when the parent dies."""
    site = Site(tree)
    loop = asyncio.get_running_loop()
    for host in tree.hosts:
        server = await loop.create_server(lambda: Connection(site), host, site.port, backlog=1024)
        site.port = server.sockets[0].getsockname()[1]
    print(site.port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Tree(**json.loads(sys.argv[1]))))
