"""The explanations of errors from Redis."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from scrapy_dq.frontier.errors import describe, explain

SCRIPT_6 = "Error running script (call to f_ab): @user_script:12: @user_script: 12: "
SCRIPT_8 = " script: ab12, on @user_script:12."
# The texts of Redis 6.2, 7.0 and 8, as redis-py passes them on.
ERRORS = [
    (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "memory is full"),
    (ResponseError(SCRIPT_6 + "-OOM command not allowed when used memory > 'maxmemory'. "), "memory is full"),
    (OutOfMemoryError("command not allowed when used memory > 'maxmemory'." + SCRIPT_8), "memory is full"),
    (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "write to its disk"),
    (ResponseError(SCRIPT_6 + "-MISCONF Errors writing to the AOF file: No space left"), "write to its disk"),
    (ResponseError("NOREPLICAS Not enough good replicas to write."), "min-replicas-to-write"),
    (ReadOnlyError("You can't write against a read only replica."), "read-only replica"),
    (ResponseError(SCRIPT_6 + "-READONLY You can't write against a read only replica."), "read-only replica"),
    (BusyLoadingError("Redis is loading the dataset in memory"), "loading its data"),
    (MasterDownError("Link with MASTER is down and replica-serve-stale-data is 'no'."), "lost its master"),
    (ClusterDownError("CLUSTERDOWN Hash slot not served"), "Cluster is down"),
    (TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot"), "moving this crawl's keys"),
    (ResponseError("BUSY Redis is busy running a script."), "Redis is busy running a script ("),
    (ConnectionError("max number of clients reached"), "raise its maxclients"),
    (ConnectionError("Too many connections"), "max_connections in REDIS_PARAMS"),
    (ResponseError("WRONGTYPE Operation against a key"), "answers with an error"),
    (ConnectionError("Error 111 connecting to localhost:6379. Connection refused."), "does not answer"),
    (TimeoutError("Timeout reading from socket"), "does not answer"),
    (OSError(), "does not answer (OSError)"),
]


@pytest.mark.parametrize(("error", "meaning"), ERRORS)
def test_an_error_is_explained_in_one_sentence(error: Exception, meaning: str) -> None:
    """The sentence names the fault and quotes the error, but not the line of the Lua script."""
    sentence = explain(error)
    assert meaning in sentence
    words = describe(error).removeprefix(f"{SCRIPT_6}-").removesuffix(SCRIPT_8.rstrip(".")).rstrip(".")
    assert f"({words})" in sentence
    assert not sentence.endswith(".")


def test_an_error_without_text_is_named() -> None:
    """A log line must not end with an empty reason."""
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(ValueError(" no ")) == "no"
