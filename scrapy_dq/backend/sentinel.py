"""Clients for the master that Redis Sentinel names. Each connection asks Sentinel, and follows a failover."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from typing import Any

import hiredis
import redis
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from scrapy_dq.frontier.blocking import blocking_class, reply_of
from scrapy_dq.settings.redis_address import split_sentinel_url

ASK_EVERY_S = 5.0
"""Seconds between two questions to Sentinel. Only Sentinel knows the master: a former master that is cut off
still answers."""
ASK_AGAIN_S = 60.0
"""If no Sentinel has answered, no question is asked for this many seconds, because each question may last
until its time-out."""
_OF_SENTINEL = "sentinel_"
"""The prefix of options for the connections to Sentinel itself, such as sentinel_password."""
_SHARED = ("socket_", "ssl_")
"""Prefixes of options for both Redis and Sentinel, unless Sentinel has its own option."""


def sentinel_client(cls: Any, url: str, **options: Any) -> Any:
    """Return a client of *cls* for the master of a service.

    Args:
        url: see `split_sentinel_url`. Options in the URL take precedence over *options*, as in redis-py.
        options: options of redis-py; with `sentinel_` in front, they are for Sentinel itself.
    Raises:
        ValueError: the URL cannot be used.
    """
    hosts, service, master_url = split_sentinel_url(url)
    is_async = issubclass(cls, redis.asyncio.Redis)
    named = options | redis.connection.parse_url(master_url)  # type: ignore[no-untyped-call]
    tls = named.pop("connection_class", None) is not None or named.pop("ssl", False)
    for name in ("host", "port", "unix_socket_path"):
        named.pop(name, None)
    own = {name: named.pop(name) for name in list(named) if name.startswith(_OF_SENTINEL)}
    own = {name.removeprefix(_OF_SENTINEL): value for name, value in own.items()}
    shared = {name: value for name, value in named.items() if name.startswith(_SHARED)}
    client_class: Any = redis.asyncio.Redis if is_async else redis.Redis
    # These clients need no retries, because the next attempt to open a connection asks Sentinel again.
    of_sentinel = shared | {"protocol": 2, "retry": no_retry(client_class), "ssl": tls} | own
    clients = [client_class(host=host, port=port, **of_sentinel) for host, port in hosts]
    manager = (_Sentinels if is_async else blocking_class(_Sentinels))(clients)
    module = redis.asyncio.sentinel if is_async else redis.sentinel
    connection = module.SentinelManagedSSLConnection if tls else module.SentinelManagedConnection
    pool = module.SentinelConnectionPool(
        service, manager, connection_class=mixed(_Follows, connection), **named
    )
    return cls.from_pool(pool)


def no_retry(cls: Any) -> Any:
    """Return a retry policy with which a client of *cls* sends no command twice."""
    return (AsyncRetry if issubclass(cls, redis.asyncio.Redis) else Retry)(NoBackoff(), 0)


def pool_address(pool: Any) -> str:
    """Return the address of a pool of `sentinel_client`, for messages, without a login."""
    names = ",".join(sorted(map(_address, pool.sentinel_manager.sentinels)))
    return f"{pool.service_name}/{pool.connection_kwargs.get('db', 0)} (Sentinel {names})"


def pools_of(client: Any) -> list[Any]:
    """Return the pool of *client*, and the pools of the clients that ask Sentinel."""
    pool = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return [pool, *(each.connection_pool for each in manager.sentinels)] if manager else [pool]


def down_after_s(client: Any) -> float | None:
    """Return the longest time, in seconds, after which a Sentinel considers the master of *client* dead.

    Return None if *client* asks no Sentinel, or no Sentinel answers. Blocking.
    """
    pool = client.connection_pool
    found: list[float] = []
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        with suppress(RedisError, OSError, KeyError):
            found.append(sentinel.sentinel_master(pool.service_name)["down-after-milliseconds"] / 1000)
        sentinel.connection_pool.disconnect()
    return max(found, default=None)


def is_async_connection(connection: type) -> bool:
    """Tell whether a class of connections is one of `redis.asyncio`."""
    return issubclass(connection, redis.asyncio.connection.AbstractConnection)


def mixed(mixin: type, connection: type) -> Any:
    """Return a subclass of *connection* with the methods of *mixin*: coroutines, or blocking methods."""
    own = mixin if is_async_connection(connection) else blocking_class(mixin)
    return type(connection.__name__, (own, connection), {})


@cache
def own_connections(connection: Any) -> Any:
    """Return a class of connections that close when Redis has become a replica, and that pack scripts in C.

    A connection that closes still raises the replica's error. The next command connects again, to the address
    that DNS or Sentinel then returns.
    """
    return mixed(_Own, connection)


async def close_at_once(connection: Any) -> None:
    """Close a connection of either kind. With `redis.asyncio`, do not wait until it is closed."""
    await reply_of(connection.disconnect(True))  # nowait


class _Own:
    def pack_command(self, *args: Any) -> list[bytes]:
        # redis-py packs the whole call in C only on blocking connections. C takes a tenth of the time.
        if args[0] in ("FCALL", "EVALSHA", "EVAL"):
            return [hiredis.pack_command(args)]
        packed: list[bytes] = super().pack_command(*args)  # type: ignore[misc]
        return packed

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await reply_of(super().read_response(*args, **options))  # type: ignore[misc]
        except ResponseError as error:
            # A script's error has READONLY in its text.
            if "READONLY" in str(error) or type(error).__name__ == "ReadOnlyError":
                await close_at_once(self)
            raise


class _Follows:
    """Asks Sentinel, before a command is sent, whether the connection still leads to the master."""

    _ask_at = 0.0

    def connect_to(self, address: Any) -> Any:
        self._ask_at = time.monotonic() + ASK_EVERY_S
        return super().connect_to(address)  # type: ignore[misc]

    async def check_health(self) -> None:
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_AGAIN_S
            with suppress(RedisError, OSError):  # if no Sentinel answers, this Redis is used as before
                master = await reply_of(self.connection_pool.get_master_address())  # type: ignore[attr-defined]
                if master != (self.host, self.port):  # type: ignore[attr-defined]
                    await close_at_once(self)
                self._ask_at = time.monotonic() + ASK_EVERY_S
            await reply_of(self.connect())  # type: ignore[attr-defined]  # does nothing if it is connected
        await reply_of(super().check_health())  # type: ignore[misc]


class _Sentinels:
    """Asks one Sentinel after another for the address of the master, for a pool of connections.

    redis-py's own class shows the arguments of all connections in its errors.
    """

    def __init__(self, clients: list[Any]) -> None:
        self.sentinels = clients

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Return host and port of the master; raise MasterNotFoundError with the answer of each Sentinel."""
        errors = ""
        for client in list(self.sentinels):
            try:
                found = await _query(client.connection_pool, "SENTINEL GET-MASTER-ADDR-BY-NAME", service)
            except (RedisError, OSError) as error:
                errors += f"; {_address(client)}: {error}"
                continue
            if found:
                self.sentinels.sort(key=lambda each: each is not client)  # next time, ask this one first
                host, port = found
                return str(host.decode() if isinstance(host, bytes) else host), int(port)
        raise redis.sentinel.MasterNotFoundError(f"no Sentinel names a master of {service!r}{errors}")


async def _query(pool: Any, *command: str) -> Any:
    """Return the answer to a command, over a new connection, because Sentinel is asked rarely.

    RACE: several connections may ask at the same time. If they used the pool's connections, one of them would
    close the connection that another one uses.
    """
    connection = pool.connection_class(**pool.connection_kwargs)
    try:
        await reply_of(connection.connect())
        await reply_of(connection.send_command(*command))
        return await reply_of(connection.read_response())
    finally:
        await reply_of(connection.disconnect())


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"
