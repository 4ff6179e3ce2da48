"""The process behind `DomainSite`: `python -m support.domain_server '{"count": 9}'` prints its port."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

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
        self._asked: Counter[tuple[str, str]] = Counter()
        self._at_once: Counter[str] = Counter()
        self._refusals: dict[str, list[Callable[[], Answer]]] = {}

    def answer(self, host: str, target: str, at_s: float) -> Answer:
        """Count a request and decide its response."""
        path, _, query = target.partition("?")
        wishes = dict(parse_qsl(query))
        if path.startswith("/__"):
            return self._report(path, wishes)
        self._counts[host] += 1
        self._asked[host, target] += 1
        self._at_once[host] += 1
        answer = self._refusal(host, target, wishes) or self._page(host, path, self._counts[host])
        self._log.append(Asked(at_s, host, target, self._at_once[host], answer.status))
        return answer._replace(ended=partial(self._at_once.subtract, [host]))

    def _refusal(self, host: str, target: str, wishes: Mapping[str, str]) -> Answer | None:
        if refusals := self._refusals.get(host):
            return refusals.pop()()
        if self._asked[host, target] <= int(wishes.get("times", "retry_after" in wishes)):
            return refusal(wishes["retry_after"], wishes)
        return None

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

    def _report(self, path: str, wishes: Mapping[str, str]) -> Answer:
        report: Any = self._log if path == "/__log" else self._counts
        if path == "/__reset":
            self._log.clear()
            self._counts.clear()
            self._asked.clear()
            self._refusals.clear()
        elif path.startswith("/__throttle/"):
            host, seconds, times = path.removeprefix("/__throttle/").split("/")
            self._refusals[host] = [partial(refusal, seconds, wishes)] * int(times)
        return Answer(json.dumps(report).encode(), content_type="application/json")


def refusal(seconds: str, wishes: Mapping[str, str]) -> Answer:
    """Return the answer with Retry-After *seconds*."""
    now, after = time.time(), seconds
    if "date" in wishes:
        # A date counts whole seconds: never sooner than asked.
        after = formatdate(math.ceil(now + float(seconds)), usegmt=True)
    headers = [("Retry-After", after), ("Date", formatdate(now, usegmt=True))]
    return Answer(b"come back later", int(wishes.get("status", 429)), headers=headers)


if __name__ == "__main__":
    asyncio.run(serve(DomainPages(Domains(**json.loads(sys.argv[1]))), ["0.0.0.0"]))
