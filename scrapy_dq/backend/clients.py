"""Plain blocking clients, for programs that consume items or write start URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.utils.misc import load_object

from scrapy_dq.backend.connection import client_arguments, new_client
from scrapy_dq.settings import Config, ConfigError

SOCKET_TIMEOUT_S = 30.0
"""Default time-out of one reply: longer than programs usually let BLPOP wait."""


def get_redis(*, url: str | None = None, redis_cls: Any = None, **options: Any) -> redis.Redis:
    """Return a blocking client: `redis.Redis(**options)`, or one for *url* with these options.

    It never repeats a command, unless *options* ask for it: a repeated RPOP would lose an item, a repeated
    RPUSH would duplicate one.

    Args:
        redis_cls: another class than `redis.Redis`, or its dotted path.
        options: redis-py's: host, port, db, password, decode_responses, …
    Raises:
        ConfigError: the URL cannot be used; nothing of it is shown.
    """
    if isinstance(redis_cls, str):
        redis_cls = load_object(redis_cls)
    cls: Any = redis_cls or redis.Redis
    if not options.keys() & {"retry", "retry_on_timeout", "retry_on_error"}:
        options["retry"] = Retry(NoBackoff(), 0)
    # redis-py 8 has a default time-out of 5 s: BLPOP could not wait longer.
    options.setdefault("socket_timeout", None)
    client: redis.Redis = new_client(cls, url, options)
    return client


def get_redis_from_settings(settings: Mapping[str, Any]) -> redis.Redis:
    """Return a blocking client of the Redis that the settings of a project name.

    Raises:
        ConfigError: they name no Redis, or cannot be used.
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
