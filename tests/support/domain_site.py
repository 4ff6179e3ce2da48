"""A site of many domains, each with its own loopback address: for tests of work divided by domain.

The domain of a request is its Host header without the port. The root of a domain (`/p/0`) links to all its
other pages (`/p/1`, …), which link to nothing: its backlog is there as soon as the root is read. Slow domains
answer their pages late, but for the root.

`/__log` and `/__counts` tell what was asked for, `/__reset` forgets it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from support.site_process import SiteProcess
from support.waiting import wait_until

PER_NET = 250


@dataclass(frozen=True)
class Domains:
    """What the site serves: quick domains of one size, and slow ones of another.

    Args:
        count: how many quick domains there are.
        pages: how many pages each of them has, the root included.
        latency_s: how long each of these takes, and the root of a slow domain.
        slow_count: how many slow domains there are.
        slow_pages: how many pages each of them has, the root included.
        slow_s: how long each of these takes, but for the root.
        slow_after: so many pages of a slow domain take no time: then it becomes slow.
    """

    count: int = 200
    pages: int = 25
    latency_s: float = 0.02
    slow_count: int = 0
    slow_pages: int = 500
    slow_s: float = 5.0
    slow_after: int = 0

    @property
    def quick_hosts(self) -> Sequence[str]:
        """127.0.1.1 and on; Linux has all of 127.0.0.0/8."""
        return _addresses(0, self.count)

    @property
    def slow_hosts(self) -> Sequence[str]:
        """127.1.1.1 and on."""
        return _addresses(1, self.slow_count)


def _addresses(net: int, count: int) -> Sequence[str]:
    return [f"127.{net}.{1 + k // PER_NET}.{1 + k % PER_NET}" for k in range(count)]


class Asked(NamedTuple):
    """One request as it came in.

    Args:
        at_s: when, on the clock of `time.monotonic()`; the kernel's word, however busy the site's process is.
        at_once: how many requests of its host were being answered then, this one included.
        status: of the answer.
    """

    at_s: float
    host: str
    target: str
    at_once: int
    status: int


class DomainSite(SiteProcess):
    """The handle of such a site's process."""

    def __init__(self, **domains: Any) -> None:
        self.domains = Domains(**domains)
        super().__init__("support.domain_server", asdict(self.domains), "127.0.0.1")

    @property
    def start_urls(self) -> list[str]:
        """The roots of all domains, those of the slow ones first."""
        return [self.url("/p/0", host) for host in (*self.domains.slow_hosts, *self.domains.quick_hosts)]

    def log(self) -> list[Asked]:
        """Return every request in the order of arrival, which need not be that of the answers."""
        return sorted((Asked(*row) for row in json.loads(self.get("/__log"))), key=lambda asked: asked.at_s)

    def counts(self) -> dict[str, int]:
        """Return how many requests each host has had; smaller than the log."""
        counts: dict[str, int] = json.loads(self.get("/__counts"))
        return counts

    def wait_for(self, requests: int, host: str = "", timeout_s: float = 10.0) -> None:
        """Wait until *host*, or all hosts together, had this many requests."""

        def asked() -> bool:
            counts = self.counts()
            return (counts.get(host, 0) if host else sum(counts.values())) >= requests

        wait_until(asked, f"{requests} requests at {host or 'the site'}", timeout_s)
