"""Makes Redis clients from a Config, without retries, and checks whether Redis is suitable for a crawl."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from scrapy_dq.backend import cluster, health, sentinel
from scrapy_dq.backend.clients import client_arguments, new_client
from scrapy_dq.embedded import EmbeddedError, EmbeddedRedis
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.blocking import at_once
from scrapy_dq.frontier.errors import as_unavailable, describe, explain, is_denial
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.wire import denied
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.settings.redis_address import names_cluster

logger = logging.getLogger(__name__)
ENSURE_EVERY_S = 2.0
"""Minimum seconds between two checks that the embedded Redis runs."""
START_PATIENCE_S = 5.0
"""Seconds that a starting worker waits for a Redis that does not answer."""


class Connection:
    """The address of the crawl's Redis, and clients for it.

    Call `open` first; `close` may be called at any time.
    """

    def __init__(self, config: Config, data_dir: Path) -> None:
        self._config = config
        self.timeout_s = config.redis_timeout_s
        self._embedded = EmbeddedRedis(data_dir) if config.embedded else None
        self._socket = ""
        self._client: redis.asyncio.Redis | None = None
        self._ensuring: asyncio.Future[None] | None = None
        self._ensured_at = 0.0
        self._cluster = False
        self._routes: dict[int, cluster.Route] = {}
        """Routes by shard: each shard may be on another node."""
        self._of_shards: dict[int, redis.asyncio.Redis] = {}
        """In a cluster: the clients for the shards other than home, by shard."""
        self._checked: set[str] = set()
        """The checked nodes of a cluster; empty if no node is checked."""
        self._level = logging.WARNING

    async def open(self, *, quiet: bool = False) -> redis.asyncio.Redis:
        """Start or join the embedded Redis if no Redis is configured, and check the Redis that answers.

        Args:
            quiet: log no warnings about Redis. On the command line, `scrapy dq doctor` shows them.
        Raises:
            FrontierRefused: Redis cannot be reached, denies access, is too old, or evicts keys of the crawl.
        """
        client = await self.connect()
        await self._check(client, quiet)
        return client

    async def connect(self) -> redis.asyncio.Redis:
        """Make the client as `open` does, but check nothing, not even whether Redis answers.

        Raises:
            FrontierRefused: the embedded Redis cannot be started or joined.
            ConfigError: redis-py cannot use the settings. Then no Redis is started.
        """
        if self._embedded is not None:
            self.blocking().close()  # this does not connect, but raises an error if the settings are wrong
            try:
                self._socket = str(await asyncio.to_thread(self._embedded.acquire))
            except EmbeddedError as error:
                raise FrontierRefused(str(error)) from error
        self._client = self.another()
        return self._client

    async def client_of(self, shard: int) -> redis.asyncio.Redis:
        """Return the client for the keys of a shard, after `open` or `connect`. Redis need not answer.

        Raises:
            FrontierRefused: after `open`: the shard's node is too old, or evicts keys of the crawl.
        """
        assert self._client is not None
        if not (shard and self.in_cluster):
            return self._client
        if shard in self._of_shards:
            return self._of_shards[shard]
        client = self._of_shards[shard] = self.another(shard)
        with suppress(RedisError, OSError, TimeoutError):  # the join tries again, and reports the error
            name = keys.Shard(self._config.crawl, shard)
            await cluster.find_node(client, keys.meta(name))
            node = cluster.address_of(client)
            if self._checked and node not in self._checked:
                self._checked.add(node)
                check_info(await client.info(), node, level=self._level)
        return client

    async def disconnect(self) -> None:
        """Close the clients of this event loop; an embedded Redis is not stopped."""
        for client in self._of_shards.values():
            await client.aclose()
        self._of_shards.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def close(self) -> None:
        """Close the clients; stop the embedded Redis if no other process uses it."""
        await self.disconnect()
        if self._embedded is not None:
            if self._ensuring is not None:
                await asyncio.wait([self._ensuring])
            try:
                await asyncio.to_thread(self._embedded.release)
            except RuntimeError:
                self._embedded.release()  # blocks here, because an exiting interpreter starts no threads

    def require_one_slot(self, crawl: str, key_names: Sequence[str]) -> None:
        """Refuse keys in another slot of a Redis Cluster than the crawl, because no script can use both.

        Raises:
            FrontierRefused: a key is in another slot. The message suggests a name for it in the right slot.
        """
        if not self._cluster:
            return
        home = keys.meta(crawl)
        for name in key_names:
            if key_slot(name.encode()) != key_slot(home.encode()):
                tag = home[home.index("{") : home.index("}") + 1]
                raise FrontierRefused(
                    f"Redis at {self.target} is a cluster, and the key {name!r} is in another slot than "
                    f"crawl {crawl!r}: they cannot be changed in one step. Give the key the crawl's hash "
                    f"tag, for example {tag + ':start_urls'!r}, in redis_key or REDIS_START_URLS_KEY"
                )

    @property
    def in_cluster(self) -> bool:
        """Whether all keys of this connection have to be in one slot."""
        return names_cluster(client_arguments(self._config)[0])

    def another(self, shard: int = 0) -> redis.asyncio.Redis:
        """Return a new client, for any event loop, for the keys of one shard; the caller closes it."""
        client: redis.asyncio.Redis = self._make(redis.asyncio.Redis, shard)
        return client

    def blocking(self, shard: int = 0) -> redis.Redis:
        """Return a new client for use in a thread, for the keys of one shard."""
        client: redis.Redis = self._make(redis.Redis, shard)
        return client

    def note_no_answer(self) -> None:
        """Make sure that the embedded Redis runs, after Redis did not answer."""
        loop = asyncio.get_running_loop()
        if self._embedded is None or self._ensuring or loop.time() < self._ensured_at + ENSURE_EVERY_S:
            return
        self._ensured_at = loop.time()
        self._ensuring = loop.run_in_executor(None, self._ensure)
        self._ensuring.add_done_callback(lambda _: setattr(self, "_ensuring", None))

    def _ensure(self) -> None:
        assert self._embedded is not None
        try:
            self._embedded.ensure()
        except EmbeddedError as error:
            logger.error("%s", error)

    @property
    def target(self) -> str:
        """The address of Redis, for messages, without a password."""
        if self._socket:
            return f"unix://{self._socket}"
        pool = (self._client or self.blocking()).connection_pool
        if hasattr(pool, "sentinel_manager"):
            return sentinel.pool_address(pool)
        if hasattr(pool, "route"):
            return cluster.pool_address(pool)
        options = pool.connection_kwargs
        if "path" in options:
            return f"unix://{options['path']}"
        return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"

    def _make(self, cls: Any, shard: int) -> Any:
        config = self._config
        options: dict[str, Any] = {
            "socket_timeout": config.redis_timeout_s,
            "socket_connect_timeout": config.redis_timeout_s,
            # RESP3 starts with HELLO: a Redis that is too old for it could not even report its version.
            "protocol": 2,
        }
        url, named = client_arguments(config)
        try:
            options |= {"unix_socket_path": self._socket} | named if self._socket else named
            route = self._routes.get(shard)
            if route is None and keys.HOME in self._routes:
                route = self._routes[keys.HOME].another()
            client = new_client(cls, url, options, route=route)
            pool = client.connection_pool
            if hasattr(pool, "route"):
                self._routes[shard] = pool.route
            for name in ("retry_on_timeout", "retry_on_error"):
                pool.connection_kwargs.pop(name, None)
            # Redis applies a script twice if the client sends it twice, so only the worker may repeat it.
            # These arguments are not in *options*, because the query of a URL would override them.
            pool.connection_kwargs |= {"decode_responses": False, "retry": sentinel.no_retry(cls)}
            pool.connection_class(**pool.connection_kwargs)  # an unknown option raises now, not later
        except ConfigError:
            raise
        except (TypeError, ValueError, RedisError) as error:
            raise ConfigError(f"REDIS_PARAMS, or the query of REDIS_URL, cannot be used: {error}") from None
        return client

    async def _check(self, client: redis.asyncio.Redis, quiet: bool) -> None:
        try:
            info = await self._first_answer(client)
        except (RedisError, OSError, TimeoutError) as error:
            raise refusal(error, self.target) from error
        self._level = logging.DEBUG if quiet else logging.WARNING
        if info is None:
            logger.log(
                self._level,
                "Redis at %s does not allow INFO: its version, eviction policy and persistence are not "
                "checked",
                self.target,
            )
        else:
            self._cluster = bool(int(info.get("cluster_enabled", 0)))
            self._checked.add(cluster.address_of(client))
            check_info(info, self.target, embedded=self._embedded is not None, level=self._level)

    async def _first_answer(self, client: redis.asyncio.Redis) -> dict[str, Any] | None:
        """Return INFO, or None if it is not allowed; wait for a Redis that is still starting."""
        deadline = time.monotonic() + START_PATIENCE_S
        logged = False
        while True:
            try:
                await cluster.find_node(client, keys.meta(self._config.crawl))
                await client.ping()
                return dict(await client.info())
            except NoPermissionError:
                await client.ping()  # raises if the user may not call PING
                return None
            except (RedisError, OSError, TimeoutError) as error:
                refused = isinstance(error, (AuthenticationError, ResponseError))
                if (refused and not cluster.is_down(error)) or time.monotonic() >= deadline:
                    raise
                if not logged:
                    logger.info("%s. Waiting up to %.0f s for it", explain(error), START_PATIENCE_S)
                    logged = True
                await asyncio.sleep(0.2)


def check_info(
    info: dict[str, Any], target: str, *, embedded: bool = False, level: int = logging.WARNING
) -> None:
    """Refuse a Redis that is too old or that evicts keys; warn, at *level*, about missing persistence.

    Raises:
        FrontierRefused: the message names the command or the version that fixes it.
    """
    for finding in health.check_requirements(info, target, embedded=embedded):
        if finding.level == health.BAD:
            raise FrontierRefused(finding.text)
        if finding.level == health.WARN:
            logger.log(level, "%s", finding.text)


def refusal(error: Exception, target: str) -> FrontierRefused:
    """Return the error for an unusable Redis, with the remedy."""
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return FrontierRefused(
            f"Redis at {target} denies access ({describe(error)}). Check the user and password in REDIS_URL "
            f"or REDIS_PARAMS, and the user's rights"
        )
    if isinstance(error, ResponseError):
        return FrontierRefused(f"Redis at {target} refuses commands: {error}")
    return FrontierRefused(
        f"Redis at {target} cannot be reached ({describe(error)}). Start it, or correct REDIS_URL, "
        f"REDIS_HOST or REDIS_PARAMS; without these, the embedded Redis is used. TLS needs rediss://"
    )


CommandClients = tuple[redis.Redis, str, Callable[[int], redis.Redis], Callable[[], list[redis.Redis]]]
"""The clients of a command: a client for the keys of home; the address of Redis, without a password; a
function that returns the client for the keys of another shard, each time the same one; and a function that
returns a client for each master of a cluster. Without a cluster, or if the user may not ask for the masters,
the last function returns only the first client.
"""


@contextmanager
def client_for_commands(
    config: Config, data_dir: Path, *, any_node: bool = False
) -> Iterator[CommandClients]:
    """Yield blocking clients, for commands.

    Args:
        any_node: any node of a cluster may answer, because the command concerns all crawls.
    Raises:
        FrontierRefused: Redis is not usable, or the embedded one cannot be started or joined.
        FrontierUnavailable: Redis stopped answering inside the block.
    """
    connection = Connection(config, data_dir)
    try:
        asyncio.run(connection.connect())
        with ExitStack() as stack:
            client: redis.Redis = stack.enter_context(connection.blocking())

            @cache
            def connect(shard: int) -> redis.Redis:
                if not connection.in_cluster:
                    return client
                other: redis.Redis = stack.enter_context(connection.blocking(shard))
                return other

            @cache
            def of_node(address: cluster.Address) -> redis.Redis:
                node: redis.Redis = stack.enter_context(cluster.client_of_node(client, address))
                return node

            def of_nodes() -> list[redis.Redis]:
                try:
                    return [of_node(each) for each in cluster.masters(client)] or [client]
                except NoPermissionError:
                    warn_denied()
                    return [client]

            @cache
            def warn_denied() -> None:
                logger.warning("The user may not run CLUSTER SLOTS: only crawls of one node are found")

            try:
                if any_node:
                    with suppress(NoPermissionError):  # this error also shows that a node has answered
                        cluster.masters(client)
                else:
                    at_once(cluster.find_node(client, keys.meta(config.crawl), patient=True))
                try:
                    client.ping()
                except ResponseError as error:
                    if "MISCONF" not in str(error):
                        raise
                    # With a full disk, Redis refuses PING like a write, but can still read the crawl.
            except (RedisError, OSError, TimeoutError) as error:
                raise refusal(error, connection.target) from error
            try:
                with as_unavailable(connection.target):
                    yield client, connection.target, connect, of_nodes
            except FrontierUnavailable as error:
                if error.__cause__ is not None and is_denial(error.__cause__):
                    raise FrontierRefused(denied(describe(error.__cause__))) from error
                raise
    finally:
        asyncio.run(connection.close())
