"""Clients for the master that Redis Sentinel names. A connection asks for it, and follows a failover."""

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
"""How often a connection asks for the master: one that is separated from its replicas still answers."""
ASK_AGAIN_S = 60.0
"""How long it does not ask after no Sentinel has answered: to wait for each takes up to its time-out."""
_OF_SENTINEL = "sentinel_"
"""What options for the connections to Sentinel itself begin with, such as sentinel_password."""
_SHARED = ("socket_", "ssl_")
"""What options begin with that are used for both, unless there is one for Sentinel alone."""


def sentinel_client(cls: Any, url: str, **options: Any) -> Any:
    """Return a client of *cls* for the master of a service.

    Args:
        url: see `split_sentinel_url`; its options take precedence, as redis-py's do.
        options: redis-py's; those with `sentinel_` in front are for Sentinel itself.
    Raises:
        ValueError: the URL cannot be used.
    """
    hosts, service, master_url = split_sentinel_url(url)
    on_the_loop = issubclass(cls, redis.asyncio.Redis)
    named = options | redis.connection.parse_url(master_url)  # type: ignore[no-untyped-call]
    tls = named.pop("connection_class", None) is not None or named.pop("ssl", False)
    for name in ("host", "port", "unix_socket_path"):
        named.pop(name, None)
    own = {name: named.pop(name) for name in list(named) if name.startswith(_OF_SENTINEL)}
    own = {name.removeprefix(_OF_SENTINEL): value for name, value in own.items()}
    shared = {name: value for name, value in named.items() if name.startswith(_SHARED)}
    asker: Any = redis.asyncio.Redis if on_the_loop else redis.Redis
    # Sentinel is asked when a connection is opened: the next attempt repeats the question.
    of_sentinel = shared | {"protocol": 2, "retry": no_retry(asker), "ssl": tls} | own
    clients = [asker(host=host, port=port, **of_sentinel) for host, port in hosts]
    manager = (_Sentinels if on_the_loop else blocking_class(_Sentinels))(clients)
    module = redis.asyncio.sentinel if on_the_loop else redis.sentinel
    connection = module.SentinelManagedSSLConnection if tls else module.SentinelManagedConnection
    pool = module.SentinelConnectionPool(
        service, manager, connection_class=mixed(_Follows, connection), **named
    )
    return cls.from_pool(pool)


def no_retry(cls: Any) -> Any:
    """Return what makes a client of *cls* send no command twice."""
    return (AsyncRetry if issubclass(cls, redis.asyncio.Redis) else Retry)(NoBackoff(), 0)


def where(pool: Any) -> str:
    """Return the address of a pool of `sentinel_client`, for messages: without a login."""
    names = ",".join(sorted(map(_address, pool.sentinel_manager.sentinels)))
    return f"{pool.service_name}/{pool.connection_kwargs.get('db', 0)} (Sentinel {names})"


def pools_of(client: Any) -> list[Any]:
    """Return the pool of *client*, and those of the clients that ask Sentinel."""
    pool = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return [pool, *(each.connection_pool for each in manager.sentinels)] if manager else [pool]


def down_after_s(client: Any) -> float | None:
    """Return the longest time, in seconds, after which a Sentinel takes the master of *client* for dead.

    None: *client* asks no Sentinel, or none tells. Blocking.
    """
    pool = client.connection_pool
    found: list[float] = []
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        with suppress(RedisError, OSError, KeyError):
            found.append(sentinel.sentinel_master(pool.service_name)["down-after-milliseconds"] / 1000)
        sentinel.connection_pool.disconnect()
    return max(found, default=None)


def is_on_the_loop(connection: type) -> bool:
    """Tell whether a class of connections is one of `redis.asyncio`."""
    return issubclass(connection, redis.asyncio.connection.AbstractConnection)


def mixed(mixin: type, connection: type) -> Any:
    """Return a class of connections, of either kind, with the methods of *mixin*, which are coroutines."""
    own = mixin if is_on_the_loop(connection) else blocking_class(mixin)
    return type(connection.__name__, (own, connection), {})


@cache
def own_connections(connection: Any) -> Any:
    """Return a class of connections that are closed when Redis has become a replica, and pack scripts in C.

    The error is raised as it is. The next command connects again: to the host that its name, or Sentinel,
    then leads to.
    """
    return mixed(_Own, connection)


async def close_at_once(connection: Any) -> None:
    """Close a connection of either kind; one of `redis.asyncio` does not wait until it is closed."""
    await reply_of(connection.disconnect(True))  # nowait


class _Own:
    def pack_command(self, *args: Any) -> list[bytes]:
        # With all its keys: redis-py does so on blocking connections alone. It takes a tenth of the time.
        if args[0] in ("FCALL", "EVALSHA", "EVAL"):
            return [hiredis.pack_command(args)]
        packed: list[bytes] = super().pack_command(*args)  # type: ignore[misc]
        return packed

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await reply_of(super().read_response(*args, **options))  # type: ignore[misc]
        except ResponseError as error:
            # The former inside a script.
            if "READONLY" in str(error) or type(error).__name__ == "ReadOnlyError":
                await close_at_once(self)
            raise


class _Follows:
    """Asks Sentinel again, before a command is sent, whether its Redis is the master still."""

    _ask_at = 0.0

    def connect_to(self, address: Any) -> Any:
        self._ask_at = time.monotonic() + ASK_EVERY_S
        return super().connect_to(address)  # type: ignore[misc]

    async def check_health(self) -> None:
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_AGAIN_S
            with suppress(RedisError, OSError):  # no Sentinel answers: as long as Redis does, it is used
                master = await reply_of(self.connection_pool.get_master_address())  # type: ignore[attr-defined]
                if master != (self.host, self.port):  # type: ignore[attr-defined]
                    await close_at_once(self)
                self._ask_at = time.monotonic() + ASK_EVERY_S
            await reply_of(self.connect())  # type: ignore[attr-defined]  # does nothing if it is connected
        await reply_of(super().check_health())  # type: ignore[misc]


class _Sentinels:
    """What a pool of connections asks for the address of the master: one sentinel after another.

    redis-py's own class shows the arguments of all connections in its errors.
    """

    def __init__(self, clients: list[Any]) -> None:
        self.sentinels = clients

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Return host and port of the master; raise MasterNotFoundError with what each has answered."""
        errors = ""
        for client in list(self.sentinels):
            try:
                found = await _asked(client.connection_pool, "SENTINEL GET-MASTER-ADDR-BY-NAME", service)
            except (RedisError, OSError) as error:
                errors += f"; {_address(client)}: {error}"
                continue
            if found:
                self.sentinels.sort(key=lambda each: each is not client)  # the next time it is asked first
                host, port = found
                return str(host.decode() if isinstance(host, bytes) else host), int(port)
        raise redis.sentinel.MasterNotFoundError(f"no Sentinel names a master of {service!r}{errors}")


async def _asked(pool: Any, *command: str) -> Any:
    """Return the answer to a command, by a connection of its own: Sentinel is asked rarely.

    RACE: several connections may ask at once. With connections of the pool, one would close that of another.
    """
    connection = pool.connection_class(**pool.connection_kwargs)
    try:
        await reply_of(connection.connect())
        await reply_of(connection.send_command(*command))
        return await reply_of(connection.read_response())
    finally:
        await reply_of(connection.disconnect())


def _address(client: Any) -> str:
    where = client.connection_pool.connection_kwargs
    return f"{where['host']}:{where['port']}"
