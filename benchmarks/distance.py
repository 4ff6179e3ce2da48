"""A TCP proxy that only delays data. It shares the cores with the measured crawl, so it must use little CPU.

`python -m benchmarks.distance '{"port": 6379, "delay_s": 0.001}'` prints the port of the proxy. The proxy of
the tests can do more, but takes more CPU per round trip. This would be too much for a scheduler that makes
twenty round trips per page.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys
import time
from collections import deque
from statistics import median

from redis import Redis

from support.site_process import SiteProcess

PINGS = 25
SMOOTHING = 0.1
EARLY_S = 0.0005
"""Maximum time by which timers are set early. On a busy machine, timers can be much later than this, but only
for a short time."""


class Side(asyncio.Protocol):
    """One of the two sides of a connection. Data that arrives on it leaves later, on the *other* side."""

    late_s = 0.0
    """The seconds by which timers have recently been late."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[float, bytes]] = deque()
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Source: asyncio.Protocol"""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Hold *data* back. Source: asyncio.Protocol"""
        self._under_way.append((self._loop.time() + self._delay_s, data))
        if len(self._under_way) == 1:
            self._set_timer()

    def _set_timer(self) -> None:
        # A sleeping core wakes up to half a millisecond late. So the timer is set early by the same time.
        self._loop.call_at(self._under_way[0][0] - Side.late_s, self._arrive)

    def _arrive(self) -> None:
        if self.other is None:  # Redis has not accepted the connection yet
            self._loop.call_later(self._delay_s, self._arrive)
            return
        error_s = self._loop.time() - self._under_way[0][0]
        Side.late_s = min(max(Side.late_s + error_s * SMOOTHING, 0), self._delay_s, EARLY_S)
        while self._under_way and self._under_way[0][0] - Side.late_s <= self._loop.time():
            self.other.transport.write(self._under_way.popleft()[1])
        if self._under_way:
            self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also close the other side. Source: asyncio.Protocol"""
        if self.other:
            self.other.transport.close()


class Near(Side):
    """The side of a client."""

    def __init__(self, delay_s: float, port: int) -> None:
        super().__init__(delay_s)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to Redis. Source: asyncio.Protocol"""
        super().connection_made(transport)
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        _, far = await self._loop.create_connection(lambda: Side(self._delay_s), "127.0.0.1", self._port)
        self.other, far.other = far, self


async def serve(port: int, delay_s: float) -> None:
    """Serve until standard input closes, which happens when the parent ends."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Near(delay_s, port), "127.0.0.1", 0)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


class Distance(SiteProcess):
    """The handle of the process of a proxy in front of the Redis at *port*."""

    def __init__(self, port: int, round_trip_ms: float) -> None:
        super().__init__("benchmarks.distance", {"port": port, "delay_s": round_trip_ms / 2000}, "127.0.0.1")

    @property
    def redis_url(self) -> str:
        """The URL for REDIS_URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def ping_ms(self) -> float:
        """Return the median time of a PING in milliseconds."""
        taken = []
        with Redis(port=self.port) as client:
            for _ in range(PINGS):
                began = time.perf_counter()
                client.ping()
                taken.append(time.perf_counter() - began)
        return median(taken) * 1000


if __name__ == "__main__":
    # select() waits with the precision of a microsecond, but epoll rounds each delay up to a millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(**json.loads(sys.argv[1])))
