"""What the benchmarks ran on: versions, Redis and its allocator, the machine, the day."""

from __future__ import annotations

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.conditions import redis_kind
from support.redis_server import RedisServer

PACKAGES = ("Scrapy", "redis", "hiredis", "scrapy-redis")


def ran_on() -> dict[str, Any]:
    """Return all of it, as JSON has it."""
    with RedisServer(redis_kind()) as redis, redis.client() as client:
        of_redis: Any = client.info()
    return {
        "date": str(datetime.date.today()),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "redis": of_redis["redis_version"],
        "redis_kind": redis_kind(),
        "allocator": of_redis["mem_allocator"],
        "cores": os.cpu_count(),
        "processor": _processor(),
    }


def described(facts: dict[str, Any]) -> str:
    """Return it as a sentence without its end."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    cores = f"{facts['cores']} cores" + f" ({facts['processor']})" * bool(facts["processor"])
    return (
        f"{facts['date']}; Redis {facts['redis']} ({facts['redis_kind']}, {facts['allocator']}), {versions}, "
        f"Python {facts['python']}; {cores}"
    )


def _processor() -> str:
    """Return the name of the processor; "": the system does not tell it."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
