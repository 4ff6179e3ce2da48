"""The versions and the machine of a measurement, for the line below its table."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from support.redis_server import Kind, RedisServer


def measured_on(packages: Sequence[str], persistence: str, kind: Kind | None = None) -> str:
    """Return date, versions, Redis version and number of cores.

    Args:
        persistence: the caller's description of how Redis stores, which is included.
        kind: whose server; None: the default one.
    """
    with RedisServer(kind) as redis, redis.client() as client:
        redis_version = client.info("server")["redis_version"]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.date.today()}; {versions}, Redis {redis_version} ({persistence}), "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )
