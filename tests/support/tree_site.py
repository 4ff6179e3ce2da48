"""A site that is a tree. Every page is linked exactly once, and every request is counted.

Page k (`/p/<k>`, root 0) links to its children k·fan_out+1 … k·fan_out+fan_out. A query changes the answer
of any path: `?s=5` delays it by 5 s, `?status=404` sets the status, `?to=/p/3` redirects, `?far=5000`
redirects to a host of 5,000 letters, `?charset=big5` makes the page long and names this encoding,
`?cookie=id=1` sets this cookie, `?flaky=2` answers 503 twice and then as usual, and `?flaky=2&after=5` also
sends `Retry-After: 5` with each 503. `/__hits` and `/__log` report the requests, and `/__reset` forgets them.
`/__latency/5` makes each later tree page take 5 s, `/__slow/90/5` each one after 90 different targets.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from support.site_process import SiteProcess


@dataclass(frozen=True)
class Tree:
    """The site's pages.

    Args:
        pages: number of tree pages.
        fan_out: maximum number of links per page.
        latency_s: duration of each tree page.
        spread_s: maximum additional duration of a page; it depends on the number of the page.
        flaky_every: pages with a multiple of this as their number answer 503 once, then 200; 0: none.
        redirect_every: pages with a multiple of this as their number redirect to `/r/<k>`; 0: none.
        hosts: loopback addresses; a link to page k uses host number k modulo their count. On Linux, all of
            127.0.0.0/8 are loopback addresses.
    """

    pages: int = 100
    fan_out: int = 4
    latency_s: float = 0.0
    spread_s: float = 0.0
    flaky_every: int = 0
    redirect_every: int = 0
    hosts: Sequence[str] = ("127.0.0.1",)


class Hit(NamedTuple):
    """One request; *at_s* is the time since the site started."""

    at_s: float
    host: str
    target: str


class TreeSite(SiteProcess):
    """The handle of a tree site's process."""

    def __init__(self, **tree: Any) -> None:
        self.tree = Tree(**tree)
        super().__init__("support.tree_server", asdict(self.tree), self.tree.hosts[0])

    @property
    def start_url(self) -> str:
        """The root of the tree."""
        return self.url("/p/0")

    @property
    def paths(self) -> set[str]:
        """The paths of all pages, after redirects."""
        every = self.tree.redirect_every
        return {f"/r/{k}" if every and k % every == 0 else f"/p/{k}" for k in range(self.tree.pages)}

    def hits(self) -> Counter[str]:
        """Return the number of requests for each target (path and query)."""
        return Counter(json.loads(self.get("/__hits")))

    def log(self) -> list[Hit]:
        """Return every request in the order of arrival; the answers may have another order."""
        return sorted((Hit(*row) for row in json.loads(self.get("/__log"))), key=lambda hit: hit.at_s)

    def slow_down(self, after: int, seconds: float) -> None:
        """Delay each tree page after requests for *after* different targets, until `set_latency`.

        The site counts the targets itself, because a test that does so on a busy machine would be too late.
        """
        self.get(f"/__slow/{after}/{seconds}")

    def set_latency(self, seconds: float) -> None:
        """Delay each later request for a tree page."""
        self.get(f"/__latency/{seconds}")
