"""The pages of a schedule and their behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

START = 0
"""The first page; every start() yields it."""


@dataclass
class Link:
    """One request that a page's callback yields."""

    page: int
    filtered: bool = True
    delay_s: float = 0.0


@dataclass
class Page:
    """A page and its behaviour when it is crawled."""

    host: bytes = b""
    priority: int = 0
    seconds: float = 0.1
    """Duration of its download and its callback."""
    retries: int = 0
    """Number of error answers that cause a retry."""
    busy: int = 0
    """Number of 429 answers with a Retry-After, which also cause a retry."""
    fails: bool = False
    """Its callback raises, and the request is kept as failed."""
    pause_s: float = 0.0
    """Pause between two requests that its callback yields."""
    kills: bool = False
    """Its callback kills its process."""
    never_sent: bool = False
    """A downloader middleware answers it, and its site gets no request."""
    links: list[Link] = field(default_factory=list)

    @property
    def tries(self) -> int:
        """Number of error answers before a good one."""
        return self.retries + self.busy

    @property
    def plain(self) -> bool:
        """Whether its callback yields nothing and nothing goes wrong."""
        return not (self.links or self.retries or self.busy or self.fails or self.kills)


def drawn(random: Random, pages: int, hosts: int, *, poison: bool) -> list[Page]:
    """Draw a tree or a mesh in which START leads to each page."""
    site = [
        Page(
            host=b"host%d" % random.randrange(hosts) if hosts > 1 else b"",
            priority=random.choice((0, 0, 0, 1, -1)),
            seconds=random.uniform(0.0, random.choice((0.04, 0.04, 0.04, 0.2))),
            retries=random.choice((0,) * 9 + (2,)),
            busy=random.choice((0,) * 19 + (1,)),
            fails=random.random() < 0.05,
            pause_s=random.choice((0.0, 0.0, 0.0, 0.02, 0.1, 0.2)),
        )
        for _ in range(pages)
    ]
    for page in range(1, pages):
        # A page with one link is like a redirect, or polls itself. Some links are unfiltered or delayed.
        link = Link(page, random.random() < 0.8, random.choice((0.0,) * 6 + (0.2,)))
        site[random.randrange(page)].links.append(link)
    for _ in range(random.choice((0, 0, pages // 2))):
        site[random.randrange(pages)].links.append(Link(random.randrange(pages)))
    if poison and pages > 1:
        site[random.randrange(1, pages)].kills = True
    for page in site:
        if page.kills:
            page.links.clear()
    return site
