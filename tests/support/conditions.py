"""What a measurement ran on, for the line below its table."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from support.redis_server import RedisServer


def conditions(packages: Sequence[str], persistence: str) -> str:
    """Return date, versions, Redis (with its *persistence*) and number of cores."""
    with RedisServer() as redis, redis.client() as client:
        redis_version = client.info("server")["redis_version"]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.date.today()}; {versions}, Redis {redis_version} ({persistence}), "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )
