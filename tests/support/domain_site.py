"""A site of many domains, each with its own loopback address, for tests of partitions.

The domain of a request is its Host header without the port. The root of a domain (`/p/0`) links to all its
other pages (`/p/1`, …), which have no links. When the root has been crawled, all pages of its domain are
known. Slow domains answer their pages late, except the root.

`/__log` and `/__counts` report the requests, and `/__reset` forgets them.
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
    """The site's pages: quick domains of one size and slow domains of another size.

    Args:
        count: the number of quick domains.
        pages: pages of each quick domain, including the root.
        latency_s: duration of each page of a quick domain, and of the root of a slow domain.
        slow_count: number of slow domains.
        slow_pages: pages of each slow domain, including the root.
        slow_s: duration of each page of a slow domain, except the root.
        slow_after: number of pages that a slow domain answers without delay before it becomes slow.
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
        """Addresses from 127.0.1.1 on. On Linux, all addresses in 127.0.0.0/8 are loopback addresses."""
        return _addresses(0, self.count)

    @property
    def slow_hosts(self) -> Sequence[str]:
        """Addresses from 127.1.1.1 on."""
        return _addresses(1, self.slow_count)


def _addresses(net: int, count: int) -> Sequence[str]:
    return [f"127.{net}.{1 + k // PER_NET}.{1 + k % PER_NET}" for k in range(count)]


class Asked(NamedTuple):
    """One request to the site.

    Args:
        at_s: the arrival time on the clock of `time.monotonic()`. The kernel reports this time, so it is
            right even if the site's process is busy.
        at_once: number of the host's requests in progress at that time, including this one.
        status: the status of the answer.
    """

    at_s: float
    host: str
    target: str
    at_once: int
    status: int


class DomainSite(SiteProcess):
    """The handle of the site's process."""

    def __init__(self, **domains: Any) -> None:
        self.domains = Domains(**domains)
        super().__init__("support.domain_server", asdict(self.domains), "127.0.0.1")

    @property
    def start_urls(self) -> list[str]:
        """The roots of all domains, slow domains first."""
        return [self.url("/p/0", host) for host in (*self.domains.slow_hosts, *self.domains.quick_hosts)]

    def log(self) -> list[Asked]:
        """Return all requests in the order of their arrival. The site may answer in another order."""
        return sorted((Asked(*row) for row in json.loads(self.get("/__log"))), key=lambda asked: asked.at_s)

    def counts(self) -> dict[str, int]:
        """Return the number of requests for each host, which takes less time than the log."""
        counts: dict[str, int] = json.loads(self.get("/__counts"))
        return counts

    def wait_for(self, requests: int, host: str = "", timeout_s: float = 10.0) -> None:
        """Wait until *host*, or all hosts together, has received this many requests."""

        def asked() -> bool:
            counts = self.counts()
            return (counts.get(host, 0) if host else sum(counts.values())) >= requests

        wait_until(asked, f"{requests} requests at {host or 'the site'}", timeout_s)
