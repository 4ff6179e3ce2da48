"""Explains the errors of Redis, and how to fix them. None of these errors ends a running crawl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    MovedError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable, FrontierUntrusted

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
# For each cause: first, parts of the error's text, or of the name of its type; then the meaning of the error.
# redis-py removes the code, such as OOM, from some texts. If a command in a script fails, Redis 6.2 puts the
# text into a longer one, which begins with "Error running script".
_CAUSES = (
    ((_UNTRUSTED,), "the certificate of Redis is not accepted: renew it, or correct ssl_ca_certs"),
    (("OOM ", "OutOfMemory", "used memory > 'maxmemory'"),
     "Redis's memory is full: raise its maxmemory, or free some"),
    (("MISCONF",), "Redis cannot write to its disk: free some of it, and see Redis's log"),
    (("NOREPLICAS",), "Redis has fewer replicas than min-replicas-to-write requires"),
    (("READONLY", "ReadOnly"), "this Redis is a read-only replica: name its master in REDIS_URL"),
    (("LOADING", "BusyLoading"), "Redis is loading its data"),
    (("MASTERDOWN", "MasterDown"), "this Redis is a replica that has lost its master"),
    (("CLUSTERDOWN", "ClusterDown"), "the Redis Cluster is down"),
    (("MovedError", "MOVED "), "the Redis Cluster has moved this crawl's keys to another node"),
    (("TRYAGAIN", "TryAgain", "AskError", "ASK ", "non local key"),
     "the Redis Cluster is moving this crawl's keys"),
    (("BUSY ", "Busy running a script"), "Redis is busy running a script"),
    (("max number of clients",), "Redis accepts no more clients: raise its maxclients"),
    (("Too many connections",),
     "this process may open no more connections: raise max_connections in REDIS_PARAMS"),
)  # fmt: skip

# The text around an error in a script. `explain` removes it, because workers may get different texts for the
# same cause.
_PLACE_IN_SCRIPT = re.compile(
    r"^Error running script \(call to \w+\): (@user_script: ?\d+: )*-?|\.? script: \w+, on @user_script:\d+$"
)
_FULL = ("OOM ", "OutOfMemory", "used memory > 'maxmemory'", "MISCONF", "NOREPLICAS")
_DENIED_IN_A_SCRIPT = (
    "NOPERM", "can't run this command", "can't access at least one of the keys", "ACL failure in script",
)  # fmt: skip


def describe(error: BaseException) -> str:
    """Return the text of an error from Redis without its full stop, or the error's type if it has no text."""
    return str(error).strip().rstrip(".") or type(error).__name__


def explain(error: BaseException) -> str:
    """Return one sentence without a full stop: the meaning of *error*, and the error itself."""
    text = f"{type(error).__name__} {error}"
    for marks, meaning in _CAUSES:
        if any(mark in text for mark in marks):
            return f"{meaning} ({_PLACE_IN_SCRIPT.sub('', describe(error))})"
    if isinstance(error, ResponseError):
        return f"Redis answers with an error ({describe(error)})"
    late = isinstance(error, (RedisTimeoutError, TimeoutError))
    within = " within socket_timeout (REDIS_PARAMS)" if late else ""
    return f"Redis does not answer{within} ({describe(error)})"


def unavailable(error: BaseException) -> FrontierUnavailable:
    """Return the exception that reports *error* as an outage; workers log its two types separately."""
    return (FrontierUntrusted if _UNTRUSTED in str(error) else FrontierUnavailable)(explain(error))


def moved_to(error: BaseException) -> tuple[str, int] | None:
    """Return host and port of the node that has the keys, from the answer MOVED of a Redis Cluster.

    None: *error* is another error. An empty host means the host of the node that has answered. This function
    also reads the text of *error*, because redis-py before version 6 raises MovedError only in its clients
    for clusters.
    """
    named = isinstance(error, MovedError) or str(error).startswith("MOVED ")
    found = re.fullmatch(r"(?:MOVED )?[0-9]+ (.*):([0-9]{1,5})", str(error)) if named else None
    return (found[1], int(found[2])) if found and isinstance(error, ResponseError) else None


def is_transient(error: BaseException) -> bool:
    """Tell whether *error* is an outage, so that the same command may succeed later."""
    if isinstance(error, ResponseError):
        text = f"{type(error).__name__} {error}"
        return any(mark in text for marks, _ in _CAUSES for mark in marks)
    return isinstance(error, (RedisError, OSError, TimeoutError))


def is_answer(error: BaseException | None) -> bool:
    """Tell whether Redis has answered with a refusal, for example because a key has another type."""
    refused = isinstance(error, (ResponseError, FrontierRefused, AuthenticationError, AuthorizationError))
    return error is not None and refused and not is_transient(error)


def is_refusal(error: BaseException) -> bool:
    """Tell whether Redis has answered with a refusal that every worker would get, such as a full memory."""
    text = f"{type(error).__name__} {error}"
    is_full = isinstance(error, ResponseError) and any(mark in text for mark in _FULL)
    return is_full or is_answer(error)


def is_no_answer(error: BaseException) -> bool:
    """Tell whether *error* means that Redis cannot be reached or gives no usable answer now."""
    return isinstance(error, (RedisError, OSError, FrontierUnavailable)) and not is_answer(error)


def is_denial(error: BaseException) -> bool:
    """Tell whether Redis denies this user a command or a key, inside or outside a script."""
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return True
    # For a command in a script, each version of Redis has a different message.
    return isinstance(error, ResponseError) and any(mark in str(error) for mark in _DENIED_IN_A_SCRIPT)


@contextmanager
def as_unavailable(target: str = "") -> Iterator[None]:
    """Turn an error from Redis (at *target*) into FrontierUnavailable with an explanation."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise FrontierUnavailable(f"{target}: {explain(error)}" if target else explain(error)) from error
