"""`python -m support.domain_server '{"count": 9}'` is the process of `DomainSite`. It prints its port."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from functools import partial
from typing import Any

from support.domain_site import Asked, Domains
from support.site_server import Answer, serve


class DomainPages:
    """The state in the site's process."""

    def __init__(self, domains: Domains) -> None:
        self.port = 0
        self._domains = domains
        self._quick, self._slow = set(domains.quick_hosts), set(domains.slow_hosts)
        self._log: list[Asked] = []
        self._counts: Counter[str] = Counter()
        self._at_once: Counter[str] = Counter()

    def answer(self, host: str, target: str, at_s: float) -> Answer:
        """Count a request and choose its answer."""
        path = target.partition("?")[0]
        if path.startswith("/__"):
            return self._report(path)
        self._counts[host] += 1
        self._at_once[host] += 1
        answer = self._page(host, path, self._counts[host])
        self._log.append(Asked(at_s, host, target, self._at_once[host], answer.status))
        return answer._replace(ended=partial(self._at_once.subtract, [host]))

    def _page(self, host: str, path: str, count: int) -> Answer:
        of_slow = host in self._slow
        pages = self._domains.slow_pages if of_slow else self._domains.pages if host in self._quick else 0
        number = path.removeprefix("/p/")
        if not number.isdigit() or int(number) >= pages:
            return Answer(path.encode(), 404)
        if int(number):
            delay_s = self._domains.latency_s
            if of_slow:
                delay_s = self._domains.slow_s if count > self._domains.slow_after else 0.0
            return Answer(f"<html><title>{number}</title></html>".encode(), delay_s=delay_s)
        links = "".join(f'<a href="/p/{child}">{child}</a>\n' for child in range(1, pages))
        root = f"<html><title>0</title><body>\n{links}</body></html>"
        return Answer(root.encode(), delay_s=self._domains.latency_s)

    def _report(self, path: str) -> Answer:
        report: Any = self._log if path == "/__log" else self._counts
        if path == "/__reset":
            self._log.clear()
            self._counts.clear()
        return Answer(json.dumps(report).encode(), content_type="application/json")


if __name__ == "__main__":
    asyncio.run(serve(DomainPages(Domains(**json.loads(sys.argv[1]))), ["0.0.0.0"]))
