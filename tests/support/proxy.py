"""A TCP proxy for one Redis that can be slow, lossy, silent or absent."""

from __future__ import annotations

import asyncio
import random
import selectors
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from typing import TypeVar
from urllib.parse import urlsplit

from support.link import SCRIPTS, SET_UP, Behaviour, Fault, Link, Streams
from support.waiting import free_port

T = TypeVar("T")

CALL_TIMEOUT_S = 60.0


class RedisProxy:
    """A proxy on a loopback port, in a thread with its own event loop.

    Any thread may call any method. Each method returns after it has taken effect.

    Args:
        upstream_url: the Redis behind the proxy, as `redis://` or `unix://` with its password.
        tls: a context with the certificate for clients, or None for no encryption.
    """

    def __init__(self, upstream_url: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._upstreams = [urlsplit(upstream_url)]
        self._drawn = random.Random(0)
        self._port = free_port()
        self._behaviour = Behaviour()
        self._links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        # select() waits with the precision of a microsecond, but epoll rounds each delay up to a millisecond.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="redis-proxy", daemon=True)

    @property
    def url(self) -> str:
        """The URL for REDIS_URL."""
        password = self._upstreams[0].password
        login = "" if password is None else f":{password}@"
        return f"redis{'s' * (self._tls is not None)}://{login}127.0.0.1:{self._port}/0"

    @property
    def commands(self) -> Counter[str]:
        """Number of received commands by name, including connection set-up."""
        return self._call(self._behaviour.commands.copy)

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return self._call(lambda: sum(not link.holding for link in self._links))

    def set_delay(self, each_way_s: float) -> None:
        """Delay later bytes by this time in each direction. Throughput does not change."""
        self._call(lambda: setattr(self._behaviour, "delay_s", each_way_s))

    def set_loss(self, probability: float, *, seed: int = 0, spare: Collection[str] = ()) -> None:
        """Cut replies at random after Redis has applied their commands.

        Args:
            spare: commands whose replies are never cut, in addition to connection set-up.
        """

        def apply() -> None:
            self._behaviour.loss, self._behaviour.random = probability, random.Random(seed)
            self._behaviour.spared = SET_UP.union(spare)

        self._call(apply)

    @property
    def script_calls(self) -> int:
        """Number of received calls of scripts and functions."""
        return sum(self.commands[name] for name in SCRIPTS)

    def cut_next_reply(
        self, command: str | None = None, *, containing: bytes | tuple[bytes, ...] = b""
    ) -> Fault:
        """Let Redis apply the next matching command. Then drop its reply and close the connection.

        Args:
            command: a name such as `EVALSHA`, or None for any command except connection set-up.
            containing: bytes that the command must contain, such as a worker's id. If this is a tuple, the
                command must contain at least one of its items.
        """
        return self._add(Fault("cut", command, containing))

    def hold_next_command(
        self, command: str | None = None, *, containing: bytes | tuple[bytes, ...] = b""
    ) -> Fault:
        """Close the connection at the next matching command, which reaches Redis only at `Fault.release`."""
        return self._add(Fault("hold", command, containing))

    def refuse_scripts(self, error: str) -> None:
        """Answer script calls with *error*, as services that restrict scripts do, until *error* is ""."""
        self._call(lambda: setattr(self._behaviour, "script_error", error))

    def lose(self, *containing: bytes) -> None:
        """Close a connection at each command with any of these bytes. Redis never gets the command."""
        self._call(lambda: setattr(self._behaviour, "lost", containing))

    def black_hole(self) -> None:
        """Accept connections and bytes, but forward nothing that arrives from now on."""
        self._call(lambda: setattr(self._behaviour, "silent", True))

    def refuse(self) -> None:
        """Cut every connection and refuse new ones."""
        self._run(self._close())

    def pass_through(self) -> None:
        """End `refuse`, `lose` and `black_hole`. Cut connections to a black hole, because they lack bytes."""
        self._run(self._open())

    def present(self, tls: ssl.SSLContext) -> None:
        """Cut every connection and present another certificate to new ones."""
        self.refuse()
        self._tls = tls
        self.pass_through()

    def lead_to(self, *upstream_urls: str, seed: int = 0) -> None:
        """Connect new clients to another Redis, as a changed DNS name does. Connected clients keep theirs.

        If there are several URLs, each client gets a random one.
        """

        def apply() -> None:
            self._upstreams, self._drawn = [urlsplit(url) for url in upstream_urls], random.Random(seed)

        self._call(apply)

    def drop_connections(self) -> None:
        """Cut every connection now, but accept new ones. A held command stays held."""
        self._call(self._drop)

    def start(self) -> RedisProxy:
        """Start to listen. The Redis behind the proxy may start later."""
        self._thread.start()
        self.pass_through()
        return self

    def stop(self) -> None:
        """Cut every connection, drop held commands and end the thread."""
        self.refuse()
        self._run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> RedisProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, coroutine: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)

    def _call(self, function: Callable[[], T]) -> T:
        """Run *function* in the proxy's loop, because only the loop's thread may use the state."""

        async def call() -> T:
            return function()

        return self._run(call())

    def _add(self, fault: Fault) -> Fault:
        self._call(lambda: self._behaviour.faults.append(fault))
        return fault

    async def _open(self) -> None:
        self._behaviour.lost = ()
        if self._behaviour.silent:
            self._drop()
            self._behaviour.silent = False
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)

    async def _close(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None
        self._drop()

    def _drop(self) -> None:
        for link in self._links:
            if not link.holding:
                link.abort()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the aborted transports close their sockets in the loop's next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None or writer.get_extra_info("sslcontext") is not self._tls:
            writer.transport.abort()  # this client connected before the proxy closed or got its certificate
            return
        link = Link((reader, writer), self._behaviour)
        self._links.add(link)
        try:
            await link.run(self._connect)
        except OSError:
            pass  # one side has closed, and abort() closes the other side
        finally:
            self._links.discard(link)
            link.abort()

    async def _connect(self) -> Streams:
        upstream = self._drawn.choice(self._upstreams)
        if upstream.scheme == "unix":
            return await asyncio.open_unix_connection(upstream.path)
        return await asyncio.open_connection(upstream.hostname, upstream.port)
