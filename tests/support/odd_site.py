"""A site with connections that are slow to set up, encrypted, or broken. It runs in threads of the test.

`/p/0` links to all other pages (`/p/1`, …). With TLS, the site also answers CONNECT, as if it were a proxy.
"""

from __future__ import annotations

import socket
import ssl
import time
from itertools import count, pairwise
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from support.arrivals import StampedSocket, listener

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.2.1"


class Seen(NamedTuple):
    """A request: its arrival as the kernel reports it, and the number of unanswered requests at that time."""

    at_s: float
    path: str
    at_once: int


class OddSite:
    """
    Args:
        pages: number of pages.
        tls: the context with the site's certificate, or None for http.
        slow_s: the pause on the first, third, ... connection. With TLS, the pause is before the handshake.
        latency_s: duration of an answer.
        breaks: whether to keep a connection open after an answer, and to break it at the second request.
            Otherwise the site closes a connection after its answer.
    """

    def __init__(
        self,
        pages: int,
        *,
        tls: ssl.SSLContext | None = None,
        slow_s: float = 0.0,
        latency_s: float = 0.0,
        breaks: bool = False,
    ) -> None:
        self.log: list[Seen] = []
        self.broken = 0
        self._pages, self._slow_s, self._latency_s, self._breaks = pages, slow_s, latency_s, breaks
        self._at_once = 0
        self._lock = Lock()
        self._tls = tls

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self._listener.getsockname()[1]}"

    @property
    def start_url(self) -> str:
        """The URL of the page with links to all other pages."""
        return f"http{'s' if self._tls else ''}://{self.address}/p/0"

    @property
    def gaps(self) -> list[float]:
        """The times between consecutive requests."""
        times = sorted(seen.at_s for seen in self.log)
        return [b - a for a, b in pairwise(times)]

    def __enter__(self) -> Self:
        StampedSocket.set_clock()
        self._listener = listener(HOST, 0)
        self._listener.listen(100)
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        for number in count():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the test has ended
                return
            Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, sock: StampedSocket, number: int) -> None:
        try:
            with sock:
                line = Line(sock)
                if self._tls and sock.recv(8, socket.MSG_PEEK) == b"CONNECT ":
                    line.read_head()
                    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                if number % 2 == 0:
                    time.sleep(self._slow_s)
                if self._tls:
                    line.shake_hands(self._tls)
                answered = 0
                while head := line.read_head():
                    path = head.split(b" ", 2)[1].decode()
                    with self._lock:
                        self._at_once += 1
                        self.log.append(Seen(sock.arrived_s, path, self._at_once))
                    time.sleep(self._latency_s)
                    with self._lock:
                        self._at_once -= 1
                        self.broken += answered
                    if answered:
                        return
                    line.write(self._answer(path))
                    if not self._breaks:
                        return
                    answered += 1
        except OSError:  # the client is gone
            pass

    def _answer(self, path: str) -> bytes:
        links = "".join(f'<a href="/p/{n}">{n}</a>' for n in range(1, self._pages)) if path == "/p/0" else ""
        body = f"<html><body>{links}</body></html>".encode()
        close = "" if self._breaks else "Connection: close\r\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{close}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


class Line:
    """A connection that may change to TLS. It reads through a socket that keeps arrival times."""

    def __init__(self, sock: StampedSocket) -> None:
        self._sock = sock
        self._tls: ssl.SSLObject | None = None

    def shake_hands(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            else:
                self._flush()
                return

    def read_head(self) -> bytes:
        """Return the head of a request, or b"" if the client closes before the head is complete."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = self._read()
            if not data:
                return b""
            head += data
        return head

    def write(self, data: bytes) -> None:
        if self._tls is None:
            self._sock.sendall(data)
        else:
            self._tls.write(data)
            self._flush()

    def _read(self) -> bytes:
        if self._tls is None:
            return self._sock.recv(65536)
        while True:
            try:
                return self._tls.read(65536)
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLError:  # the client closed without ending TLS
                return b""

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def _flush(self) -> None:
        self._sock.sendall(self._out.read())
