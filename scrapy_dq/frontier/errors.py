"""What an error from Redis means, and what to do about it: each is an outage, none is an end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from scrapy_dq.frontier.model import FrontierUnavailable

# (what its text or its type's name holds, what it means). redis-py cuts the code off some texts, and
# Redis 6.2 hides them inside "Error running script".
_CAUSES = (
    (("OOM ", "OutOfMemory", "used memory > 'maxmemory'"),
     "Redis's memory is full: raise its maxmemory, or free some"),
    (("MISCONF",), "Redis cannot write to its disk: free some of it, and see Redis's log"),
    (("NOREPLICAS",), "Redis has not the replicas that min-replicas-to-write demands"),
    (("READONLY", "ReadOnly"), "this Redis is a read-only replica: name its master in REDIS_URL"),
    (("LOADING", "BusyLoading"), "Redis is loading its data"),
    (("MASTERDOWN", "MasterDown"), "this Redis is a replica that has lost its master"),
    (("CLUSTERDOWN", "ClusterDown"), "the Redis Cluster is down"),
    (("TRYAGAIN", "TryAgain"), "the Redis Cluster is moving this crawl's keys"),
    (("BUSY ", "Busy running a script"), "Redis is busy with somebody's script"),
    (("max number of clients",), "Redis takes no more clients: raise its maxclients"),
    (("Too many connections",),
     "this process may open no more connections: raise max_connections in REDIS_PARAMS"),
)  # fmt: skip

_DENIED_IN_A_SCRIPT = ("NOPERM", "can't run this command", "can't access at least one of the keys")


def describe(error: BaseException) -> str:
    """Return what to print of an error from Redis: its text, without a full stop, or its type."""
    return str(error).strip().rstrip(".") or type(error).__name__


def explain(error: BaseException) -> str:
    """Return one sentence without a full stop: what *error* means, and the error itself."""
    text = f"{type(error).__name__} {error}"
    for marks, meaning in _CAUSES:
        if any(mark in text for mark in marks):
            return f"{meaning} ({describe(error)})"
    if isinstance(error, ResponseError):
        return f"Redis answers with an error ({describe(error)})"
    return f"Redis does not answer ({describe(error)})"


def passes(error: BaseException) -> bool:
    """Tell whether *error* is an outage, so that the same command may be served later."""
    if isinstance(error, ResponseError):
        text = f"{type(error).__name__} {error}"
        return any(mark in text for marks, _ in _CAUSES for mark in marks)
    return isinstance(error, (RedisError, OSError, TimeoutError))


def denies(error: BaseException) -> bool:
    """Tell whether Redis refuses its user a command or a key, in a script or beside it."""
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return True
    # Redis 6.2 says it so of a command in a script.
    return isinstance(error, ResponseError) and any(mark in str(error) for mark in _DENIED_IN_A_SCRIPT)


@contextmanager
def as_unavailable(target: str = "") -> Iterator[None]:
    """Raise FrontierUnavailable, which says what it means, for an error from the Redis (at *target*)."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise FrontierUnavailable(f"{target}: {explain(error)}" if target else explain(error)) from error
