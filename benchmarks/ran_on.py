"""The conditions of the benchmarks: versions, Redis and its allocator, the machine, and the date."""

from __future__ import annotations

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.redis_here import found_kinds, start_redis

PACKAGES = ("Scrapy", "redis", "hiredis", "scrapy-redis")


def ran_on() -> dict[str, Any]:
    """Return the conditions, for JSON."""
    with start_redis() as redis, redis.client() as client:
        of_redis: Any = client.info()
    return {
        "date": str(datetime.date.today()),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "redis": of_redis["redis_version"],
        "redis_kind": found_kinds()[0],
        "allocator": of_redis["mem_allocator"],
        "cores": os.cpu_count(),
        "processor": _processor(),
    }


def described(facts: dict[str, Any]) -> str:
    """Return the conditions as a sentence without a full stop."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    cores = f"{facts['cores']} cores" + f" ({facts['processor']})" * bool(facts["processor"])
    return (
        f"{facts['date']}; Redis {facts['redis']} ({facts['redis_kind']}, {facts['allocator']}), {versions}, "
        f"Python {facts['python']}; {cores}"
    )


def _processor() -> str:
    """Return the name of the processor, or "" if the system does not report it."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
