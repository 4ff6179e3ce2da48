"""A site whose crawl has the same kind of pages from start to end: `python -m benchmarks.catalogue '{}'`.

By default, each page has 13 links. The home page links to 13 sections, a section to 13 lists, a list to its
first 13 items, and an item to the item 13 places later, if there is one. All other links of an item lead to
pages that are already known: the home page, the section, the list and the first items of the same list. So a
crawl that is stopped halfway has found as many new links per page as a whole crawl. All addresses have the
same length. So a scheduler that serves them in the order of their bytes goes deep first, like a scheduler
that serves the newest first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from support.site_process import SiteProcess
from support.site_server import Answer, serve

LINKS = 13
"""The default number of links on each page, of sections, and of lists in each section."""


class Page(NamedTuple):
    """A page by its place. 0 means none: the home page has no section, a section no list, a list no item."""

    section: int = 0
    of_section: int = 0
    item: int = 0

    @property
    def path(self) -> str:
        """The path of the page's URL."""
        return f"/catalogue/section-{self.section:02}/list-{self.of_section:02}/item-{self.item:02}.html"


def catalogue(pages: int, links: int = LINKS) -> dict[str, list[str]]:
    """Return the links of each page by path. *pages* is the number of pages, including the home page."""
    numbers, lists = range(1, links + 1), links * links
    found = {Page(): [Page(section) for section in numbers]}
    items = pages - 1 - links - lists
    for section in numbers:
        found[Page(section)] = [Page(section, of_section) for of_section in numbers]
        for of_section in numbers:
            # If the items do not divide evenly, the first lists have one more.
            before = (section - 1) * links + of_section - 1
            of_list = [
                Page(section, of_section, n + 1) for n in range(items // lists + (before < items % lists))
            ]
            found[Page(section, of_section)] = of_list[:links]
            for page in of_list:
                found[page] = list(islice(_links(page, of_list, links), links))
    assert len(found) == pages
    return {page.path: [link.path for link in its_links] for page, its_links in found.items()}


def _links(page: Page, of_list: list[Page], links: int) -> Iterator[Page]:
    """Return the pages that an item links to, new pages first."""
    known = [Page(), Page(page.section), Page(page.section, page.of_section)]
    siblings = (item for item in of_list[:links] if item != page)
    return chain(of_list[page.item - 1 + links : page.item + links], known, siblings)


class CataloguePages:
    """The state of the site's process: its answers, which are made in advance, and the times of requests."""

    def __init__(self, pages: int, links: int = LINKS) -> None:
        self.port = 0
        self._log: list[tuple[float, str]] = []
        of_site = catalogue(pages, links)
        self._answers = {path: Answer(_html(path, its_links)) for path, its_links in of_site.items()}

    def answer(self, host: str, target: str, at_s: float) -> Answer:
        """Record a request, and return its response."""
        if target == "/__log":
            return Answer(json.dumps(self._log).encode())
        if target == "/__count":
            return Answer(str(len(self._log)).encode())
        self._log.append((at_s, target))
        return self._answers.get(target) or Answer(b"", 404)


def _html(path: str, links: list[str]) -> bytes:
    rows = "\n".join(f'<li><a href="{link}">{link.removeprefix("/catalogue/")}</a></li>' for link in links)
    return f"<html><head><title>{path}</title></head><body><ul>\n{rows}\n</ul></body></html>\n".encode()


class CatalogueSite(SiteProcess):
    """The handle of a process with such a site. Start it in the root of the repository."""

    def __init__(self, pages: int, links: int = LINKS) -> None:
        self.pages = pages
        super().__init__("benchmarks.catalogue", {"pages": pages, "links": links}, "127.0.0.1")

    @property
    def start_url(self) -> str:
        """The home page, from which all pages are found."""
        return self.url(Page().path)

    def count(self) -> int:
        """Return the number of requests, which takes less time than the log."""
        return int(self.get("/__count"))

    def log(self) -> list[tuple[float, str]]:
        """Return the time by `time.monotonic()` and the path of each request."""
        return [(at_s, path) for at_s, path in json.loads(self.get("/__log"))]


if __name__ == "__main__":
    asyncio.run(serve(CataloguePages(**json.loads(sys.argv[1])), ["127.0.0.1"]))
