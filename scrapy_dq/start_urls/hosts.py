"""Which hosts a fed request may go to, and what it is redirected to (DQ_START_HOSTS)."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

_FED = "dq_start"
"""In the meta of a request that was fed: retries and redirects of it have a copy."""


class OtherHost(ValueError):
    """A request may not go where it would; the message says where."""


class StartHosts:
    """The hosts of DQ_START_HOSTS, with all below them; none: any host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = frozenset(hosts)

    def check_fed(self, request: Request) -> None:
        """Check a request of a start key, and mark it.

        Raises:
            OtherHost: it may not be crawled.
        """
        if self._hosts:
            request.meta[_FED] = True
            self._check(request, "")

    def check_served(self, request: Request) -> None:
        """Check a request that was leased: it may have been a dead letter because of its host.

        Raises:
            OtherHost: it may not be crawled.
        """
        if self._hosts and _FED in request.meta:
            self._check(request, "")

    def check(self, request: Request, followed: bool) -> None:
        """Check what a worker stores.

        Args:
            followed: it is a redirect or a retry. What a callback yields may go anywhere, and loses the mark,
                which it may have with the meta of its page.
        Raises:
            OtherHost: it may not be crawled.
        """
        if self._hosts and _FED in request.meta:
            if followed:
                self._check(request, "redirected to ")
            else:
                del request.meta[_FED]

    def _check(self, request: Request, how: str) -> None:
        host = (urlparse_cached(request).hostname or "").rstrip(".")
        labels = host.split(".") if ":" not in host else [host]  # a zone of IPv6 may end like a listed host
        if not any(".".join(labels[n:]) in self._hosts for n in range(len(labels))):
            raise OtherHost(f"{how}{host!a:.260}, which is not among DQ_START_HOSTS")
