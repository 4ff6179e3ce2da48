"""DQ_URL_SCHEMES: the schemes of URLs that a web page may lead to."""

from __future__ import annotations

from collections.abc import Iterable

from scrapy import Request

from scrapy_dq.scheduling.origins import Origin


class UrlSchemes:
    """The schemes that a web page may lead to."""

    def __init__(self, schemes: Iterable[str]) -> None:
        self._schemes = frozenset(scheme.lower() for scheme in schemes)

    def __str__(self) -> str:
        return ", ".join(sorted(self._schemes))

    def refuse(self, request: Request, origin: Origin) -> bool:
        """Return whether *request* has another scheme, and a web page may have led to it.

        Such a page could name files of this host, or files that the host's AWS credentials can read. This
        method accepts requests of `start()`, links of a page with the same scheme, data: URLs, which contain
        their own content, and requests that the spider marks with `dq_local`. The mark does not count if the
        parent also has it, because it may be a copy. It also does not count in a request of `engine.crawl()`,
        which may be a link that the spider has kept, with a copied mark.
        """
        scheme, parent = _scheme_of(request), origin.parent
        if scheme in self._schemes or scheme == "data":
            return False
        if parent is None:  # start() may yield such a URL; a start payload with one was refused earlier
            return not origin.begins
        marked = request.meta.get("dq_local") and not parent.meta.get("dq_local")
        return not marked and _scheme_of(parent) != scheme


def _scheme_of(request: Request) -> str:
    return request.url.partition(":")[0].lower()
