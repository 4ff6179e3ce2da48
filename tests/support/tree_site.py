"""A site that is a tree: every page is linked exactly once, and every request is counted.

Page k (`/p/<k>`, root 0) links to its children k·fan_out+1 … k·fan_out+fan_out. Any path takes a query:
`?s=5` answers after 5 s, `?status=404` with that status, `?to=/p/3` with a redirect, `?far=5000` with one
to a host of 5,000 letters, `?charset=big5` with a long page that claims to be written in it,
`?cookie=id=1` with this cookie, `?flaky=2`
with 503 twice and then as usual, `?flaky=2&after=5` with 503 and `Retry-After: 5` twice. `/__hits` and
`/__log` tell what was asked for, `/__reset` forgets it; `/__latency/5` makes each tree page that is asked
for from now on take 5 s, `/__slow/90/5` each one that is asked for after 90 different targets.
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
    """What the site serves.

    Args:
        pages: how many tree pages there are.
        fan_out: links per page, at most.
        latency_s: how long each tree page takes.
        spread_s: up to so much longer, by its number.
        flaky_every: pages whose number is a multiple of it answer 503 once, then 200; 0: none.
        redirect_every: pages whose number is a multiple of it redirect to `/r/<k>`; 0: none.
        hosts: the loopback addresses to listen on; page k is linked at the k-th of them, modulo their
            number. Linux has all of 127.0.0.0/8.
    """

    pages: int = 100
    fan_out: int = 4
    latency_s: float = 0.0
    spread_s: float = 0.0
    flaky_every: int = 0
    redirect_every: int = 0
    hosts: Sequence[str] = ("127.0.0.1",)


class Hit(NamedTuple):
    """One request as it came in; *at_s* is since the site started."""

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
        """The paths of all pages, as a spider sees them after redirects."""
        every = self.tree.redirect_every
        return {f"/r/{k}" if every and k % every == 0 else f"/p/{k}" for k in range(self.tree.pages)}

    def hits(self) -> Counter[str]:
        """Return how often each target (path and query) was requested."""
        return Counter(json.loads(self.get("/__hits")))

    def log(self) -> list[Hit]:
        """Return every request in the order of arrival, which need not be that of the answers."""
        return sorted((Hit(*row) for row in json.loads(self.get("/__log"))), key=lambda hit: hit.at_s)

    def slow_down(self, after: int, seconds: float) -> None:
        """Delay each tree page once *after* different targets were asked for, until `set_latency`.

        The site does it by itself: on a busy machine, a test comes too late.
        """
        self.get(f"/__slow/{after}/{seconds}")

    def set_latency(self, seconds: float) -> None:
        """Delay each tree page that is requested from now on."""
        self.get(f"/__latency/{seconds}")
