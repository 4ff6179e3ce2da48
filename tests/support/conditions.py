"""What a measurement ran on, for the line below its table."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from support.redis_server import KINDS, Kind, RedisServer, find_binary


def redis_kind() -> Kind:
    """Return the first kind of server that is there."""
    return next(kind for kind in KINDS if find_binary(kind))


def conditions(packages: Sequence[str], persistence: str) -> str:
    """Return date, versions, Redis (with its *persistence*) and number of cores."""
    with RedisServer(redis_kind()) as redis, redis.client() as client:
        redis_version = client.info("server")["redis_version"]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.date.today()}; {versions}, Redis {redis_version} ({persistence}), "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )
