"""A site whose pages are a tree: one link leads to each page except the root. Every request is counted.

Page k (`/p/<k>`, root 0) links to its children k·fan_out+1 … k·fan_out+fan_out. A query changes the answer
of any path: `?s=5` delays it by 5 s, `?status=404` sets the status, `?to=/p/3` redirects, `?far=5000`
redirects to a host of 5,000 letters, `?charset=big5` makes the page long and names this encoding,
`?cookie=id=1` sets this cookie, `?flaky=2` answers 503 twice and then as usual, and `?flaky=2&after=5` also
sends `Retry-After: 5` with each 503. `/__hits` and `/__log` report the requests, and `/__reset` forgets them.
After `/__latency/5`, each tree page takes 5 s. After `/__slow/90/5`, each tree page takes 5 s as soon as more
than 90 different targets have been requested.
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
        spread_s: the maximum additional duration of a page, which depends on the number of the page.
        flaky_every: pages whose number is a multiple of this answer 503 once, and then 200. 0 means no page.
        redirect_every: pages whose number is a multiple of this redirect to `/r/<k>`. 0 means no page.
        hosts: loopback addresses. A link to page k uses host number k modulo their count. On Linux, all
            addresses of 127.0.0.0/8 are loopback addresses.
    """

    pages: int = 100
    fan_out: int = 4
    latency_s: float = 0.0
    spread_s: float = 0.0
    flaky_every: int = 0
    redirect_every: int = 0
    hosts: Sequence[str] = ("127.0.0.1",)


class Hit(NamedTuple):
    """One request. *at_s* is the time in seconds since the site started."""

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
        """Return all requests in the order of their arrival. The site may answer in another order."""
        return sorted((Hit(*row) for row in json.loads(self.get("/__log"))), key=lambda hit: hit.at_s)

    def slow_down(self, after: int, seconds: float) -> None:
        """Delay tree pages when *after* different targets have been requested, until `set_latency`.

        The site counts the targets, because on a busy machine a test that counts them would be too late.
        """
        self.get(f"/__slow/{after}/{seconds}")

    def set_latency(self, seconds: float) -> None:
        """Let each later answer with a tree page take this time."""
        self.get(f"/__latency/{seconds}")
