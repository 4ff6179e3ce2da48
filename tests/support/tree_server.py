"""`python -m support.tree_server '{"pages": 9}'` is the process of `TreeSite`. It prints its port."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from urllib.parse import parse_qsl

from support.site_server import Answer, serve
from support.tree_site import Hit, Tree

GOLDEN = (5**0.5 - 1) / 2
"""The multiples of this number, modulo 1, are spread evenly from 0 to 1."""


class TreePages:
    """The state in the site's process."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.port = 0
        self._latency_s = tree.latency_s
        self._quick = tree.pages
        """The number of different targets after which the site becomes slow."""
        self._slow_s = 0.0
        self._started = time.monotonic()
        self._hits: Counter[str] = Counter()
        self._log: list[Hit] = []

    def answer(self, host: str, target: str, at_s: float) -> Answer:
        """Count a request and choose its answer."""
        if target.startswith("/__"):
            return self._report(target)
        self._hits[target] += 1
        self._log.append(Hit(at_s - self._started, host, target))
        path, _, query = target.partition("?")
        wishes = dict(parse_qsl(query))
        if self._hits[target] <= int(wishes.get("flaky", 0)):
            after = [("Retry-After", wishes["after"])] if "after" in wishes else []
            return Answer(b"try again", 503, headers=after)
        delay_s = float(wishes.get("s", 0))
        if "to" in wishes:
            return Answer(b"", 302, delay_s, [("Location", wishes["to"])])
        if "far" in wishes:
            letters = "".join(map(chr, range(0x4E00, 0x4E00 + int(wishes["far"]))))
            return Answer(b"", 302, delay_s, [("Location", f"http://{letters}/")])
        kind, _, number = path[1:].partition("/")
        if kind in ("p", "r") and number.isdigit() and int(number) < self.tree.pages:
            page = self._page(kind, int(number), self._hits[target])
        else:
            page = Answer(path.encode(), 200 if {"s", "flaky"} & wishes.keys() else 404)
        if "cookie" in wishes:
            page = page._replace(headers=[("Set-Cookie", wishes["cookie"])])
        if "charset" in wishes:
            kind = f"text/html; charset={wishes['charset']}"
            page = page._replace(content_type=kind, body=page.body * 1_000)
        return page._replace(status=int(wishes.get("status", page.status)), delay_s=page.delay_s + delay_s)

    def _page(self, kind: str, number: int, times: int) -> Answer:
        tree = self.tree
        latency_s = self._latency_s if len(self._hits) <= self._quick else self._slow_s
        latency_s += tree.spread_s * (number * GOLDEN % 1)
        if kind == "p" and tree.redirect_every and number % tree.redirect_every == 0:
            return Answer(b"", 302, latency_s, [("Location", f"/r/{number}")])
        if tree.flaky_every and number % tree.flaky_every == 0 and times == 1:
            return Answer(b"try again", 503, latency_s)
        first = number * tree.fan_out + 1
        links = "".join(
            f'<a href="{self._href(child)}">{child}</a>\n'
            for child in range(first, min(first + tree.fan_out, tree.pages))
        )
        page = f"<html><title>{number}</title><body>\n{links}</body></html>"
        return Answer(page.encode(), delay_s=latency_s)

    def _href(self, number: int) -> str:
        hosts = self.tree.hosts
        base = f"http://{hosts[number % len(hosts)]}:{self.port}" if len(hosts) > 1 else ""
        return f"{base}/p/{number}"

    def _report(self, target: str) -> Answer:
        if target == "/__reset":
            self._hits.clear()
            self._log.clear()
        if target.startswith("/__latency/"):
            self._latency_s = self._slow_s = float(target.removeprefix("/__latency/"))
        if target.startswith("/__slow/"):
            quick, seconds = target.removeprefix("/__slow/").split("/")
            self._quick, self._slow_s = int(quick), float(seconds)
        report = self._log if target == "/__log" else self._hits
        return Answer(json.dumps(report).encode(), content_type="application/json")


if __name__ == "__main__":
    TREE = Tree(**json.loads(sys.argv[1]))
    asyncio.run(serve(TreePages(TREE), TREE.hosts))
