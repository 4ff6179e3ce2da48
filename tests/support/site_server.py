"""HTTP for the processes of test sites. A site chooses answers; this module sends each after its delay."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from support.arrivals import StampedSocket, listener

HOST = re.compile(rb"\r\nhost: *([^:\s]+)", re.IGNORECASE)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    """A planned response."""

    body: bytes
    status: int = 200
    delay_s: float = 0.0
    headers: Sequence[tuple[str, str]] = ()
    content_type: str = "text/html"
    ended: Callable[[], object] | None = None
    """Called once, when the answer is sent or its client has disconnected."""


class Site(Protocol):
    """The interface of a site for this server."""

    port: int

    def answer(self, host: str, target: str, at_s: float) -> Answer:
        """Choose the answer to a request for *target* (path and query) at *host* (without port).

        Args:
            at_s: the arrival of the request on the clock of `time.monotonic()`. The kernel reports this time,
                because this process may read the request later.
        """


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one response at a time. Every method gets the same answer as GET."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._received = b""
        self._arrived_s = 0.0
        self._due: tuple[Answer, asyncio.TimerHandle] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Source: asyncio.Protocol"""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = transport.get_extra_info("sockname")[0]

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the planned response. Source: asyncio.Protocol"""
        due, self._due = self._due, None
        if due:
            answer, timer = due
            timer.cancel()
            if answer.ended:
                answer.ended()

    def data_received(self, data: bytes) -> None:
        """Collect bytes until a request is complete. Source: asyncio.Protocol"""
        self._received += data
        self._arrived_s = StampedSocket.arrived_s
        self._next()

    def _next(self) -> None:
        head, complete, rest = self._received.partition(b"\r\n\r\n")
        if self._due or not complete:
            return
        length = LENGTH.search(head)
        body_bytes = int(length[1]) if length else 0
        if len(rest) < body_bytes:
            return
        self._received = rest[body_bytes:]
        target = head.split(b" ", 2)[1].decode(errors="replace")
        host = HOST.search(head)
        name = host[1].decode(errors="replace") if host else self._address
        answer = self._site.answer(name, target, self._arrived_s)
        last = b"connection: close" in head.lower()
        if answer.delay_s:
            loop = asyncio.get_running_loop()
            self._due = answer, loop.call_later(answer.delay_s, self._send, answer, last)
        else:
            self._send(answer, last)

    def _send(self, answer: Answer, last: bool) -> None:
        self._due = None
        if answer.ended:
            answer.ended()
        if self._transport.is_closing():
            return
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        headers += answer.headers
        if last:
            headers.append(("Connection", "close"))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._transport.write(f"HTTP/1.1 {answer.status} X\r\n{head}\r\n".encode() + answer.body)
        if last:
            self._transport.close()
        else:
            self._next()


async def serve(site: Site, addresses: Sequence[str]) -> None:
    """Serve *site* on one port of all *addresses* until standard input closes, as when the parent dies."""
    loop = asyncio.get_running_loop()
    StampedSocket.set_clock()
    for address in addresses:
        sock = listener(address, site.port)
        server = await loop.create_server(lambda: Connection(site), sock=sock, backlog=1024)
        site.port = server.sockets[0].getsockname()[1]
    print(site.port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
