"""Redis clients without retries and with safe logins, for crawls and for other programs."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry
from scrapy.utils.misc import load_object

from scrapy_dq.backend import cluster, sentinel
from scrapy_dq.frontier.blocking import blocking, reply_of
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.settings.peers import UNUSED_PARAMS
from scrapy_dq.settings.redis_address import check_url, names_cluster, names_sentinel, with_tls, wrong_url

SOCKET_TIMEOUT_S = 30.0
"""Seconds for one reply, by default: longer than programs usually let BLPOP wait."""
_NAMES = "url, or REDIS_URL"
_NOT_ENCODED = "the user or the password of the credential provider cannot be encoded"
_ARGUMENTS = ", with args beginning with"
"""A part of a server's error about an unknown command. The text after it repeats the arguments."""


def client_arguments(config: Config) -> tuple[str, dict[str, Any]]:
    """Return the URL of the configured Redis, or "", and all arguments of its client except for retries."""
    options = {name: value for name, value in config.redis_params.items() if name not in UNUSED_PARAMS}
    # Precedence as in scrapy-redis: a URL, then a socket, then REDIS_HOST.
    own_url = options.pop("url", "")
    url = config.redis_url or own_url
    if not url.startswith("unix:"):
        options.setdefault("socket_keepalive", True)
    if url:
        # A pool that is made from a URL does not take the argument `ssl`: the URL's scheme replaces it.
        return with_tls(url) if options.pop("ssl", False) else url, options
    if config.redis_host and not options.get("unix_socket_path"):
        options |= {"host": config.redis_host, "port": config.redis_port}
    if config.redis_db:
        options["db"] = config.redis_db
    return "", options


def _make_safe(pool: Any) -> None:
    """Make TLS connections verify the host name, and keep passwords out of login errors."""
    options = pool.connection_kwargs
    pool.connection_class = sentinel.own_connections(pool.connection_class)
    # redis-py before 6 does not verify the host name.
    if speaks_tls(pool) and options.get("ssl_cert_reqs") not in ("none", ssl.CERT_NONE):
        options.setdefault("ssl_check_hostname", True)
    if options.get("redis_connect_func") is None:
        is_async = sentinel.is_async_connection(pool.connection_class)
        options["redis_connect_func"] = _log_in if is_async else blocking(_log_in)


def speaks_tls(pool: Any) -> bool:
    """Tell whether the connections of *pool* are encrypted."""
    return issubclass(pool.connection_class, (redis.SSLConnection, redis.asyncio.SSLConnection))


async def _log_in(connection: Any) -> None:
    """Prepare a new connection as redis-py does, but raise errors that do not repeat the password."""
    try:
        await reply_of(connection.on_connect())
    except RedisError as error:
        # A server that does not know AUTH or HELLO repeats its arguments.
        text = str(error).partition(_ARGUMENTS)[0]
        error.args = (text.replace(str(connection.password or _ARGUMENTS), "..."),)
        raise
    except (UnicodeError, LookupError):
        raise AuthenticationError(_NOT_ENCODED) from None
    except (AttributeError, TypeError) as error:
        raise AuthenticationError(f"an argument in REDIS_PARAMS cannot be used: {error}") from None


def new_client(
    cls: Any, url: str | None, options: Mapping[str, Any], *, route: cluster.Route | None = None
) -> Any:
    """Return a client of *cls*, for *url* if there is one.

    Args:
        route: the route of other clients for the same slot of a Redis Cluster.
    Raises:
        ConfigError: the URL cannot be used; the message quotes nothing from it.
    """
    if url:
        check_url(_NAMES, url)
        make = cls.from_url
        if names_sentinel(url):
            make = partial(sentinel.sentinel_client, cls)
        elif names_cluster(url):
            make = partial(cluster.cluster_client, cls, route=route)
        try:
            client = make(url, **options)
        except ValueError:
            raise wrong_url(_NAMES) from None
    else:
        client = cls(**options)
    if isinstance(client, (redis.Redis, redis.asyncio.Redis)):
        for pool in sentinel.pools_of(client):
            _make_safe(pool)
            cluster.follow(pool)
    return client


def connect_url(url: str, timeout_s: float = 2.0) -> redis.Redis:
    """Return a blocking client for *url* that decodes nothing and never retries.

    Raises:
        ConfigError: the URL cannot be used; the message quotes nothing from it.
    """
    options = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    client: redis.Redis = new_client(redis.Redis, url, options | {"retry": sentinel.no_retry(redis.Redis)})
    return client


def get_redis(*, url: str | None = None, redis_cls: Any = None, **options: Any) -> redis.Redis:
    """Return a blocking Redis client for *url*, or without a URL for the host in *options*.

    The client never repeats a command, unless *options* ask for this. A repeated RPOP would lose an item, and
    a repeated RPUSH would duplicate an item.

    Args:
        redis_cls: another class than `redis.Redis`, or its dotted path.
        options: options of redis-py: host, port, db, password, decode_responses, …
    Raises:
        ConfigError: the URL cannot be used; the message quotes nothing from it.
    """
    if isinstance(redis_cls, str):
        redis_cls = load_object(redis_cls)
    cls: Any = redis_cls or redis.Redis
    if not options.keys() & {"retry", "retry_on_timeout", "retry_on_error"}:
        options["retry"] = Retry(NoBackoff(), 0)
    # redis-py 8 has a default time-out of 5 s. With this time-out, BLPOP could not wait longer than 5 s.
    options.setdefault("socket_timeout", None)
    client: redis.Redis = new_client(cls, url, options)
    return client


def get_redis_from_settings(settings: Mapping[str, Any]) -> redis.Redis:
    """Return a blocking client of the Redis that a project's settings name.

    Raises:
        ConfigError: the settings name no Redis, or cannot be used.
    """
    config = Config.for_items(settings)
    if config.embedded:
        raise ConfigError(
            "these settings name no Redis, so the project's workers use an embedded one, which runs only "
            "while they do. Set REDIS_URL to a Redis of your own; or, to inspect the embedded one, connect "
            "to its socket, which docs/embedded.md names"
        )
    url, options = client_arguments(config)
    passed_on = ("redis_cls", "retry", "retry_on_timeout", "retry_on_error", "decode_responses")
    options |= {name: config.redis_params[name] for name in passed_on if name in config.redis_params}
    if settings.get("REDIS_ENCODING"):
        options["encoding"] = settings["REDIS_ENCODING"]
    if settings.get("REDIS_DECODE_RESPONSES") is not None:
        options["decode_responses"] = str(settings["REDIS_DECODE_RESPONSES"]).lower() in ("true", "1")
    for name in ("socket_timeout", "socket_connect_timeout"):
        options.setdefault(name, SOCKET_TIMEOUT_S)
    try:
        return get_redis(url=url, **options)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"REDIS_PARAMS cannot be used: {error}") from None
