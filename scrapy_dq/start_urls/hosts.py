"""Which hosts a fed request and its redirects may go to (DQ_START_HOSTS)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

_FED = "dq_start"
"""Marks a request that was fed, in its meta: its retries and redirects have a copy."""


# Others end a name for some programs: evil.example%2f.example.com.
_NAME = re.compile(r"[0-9A-Za-z_.-]+").fullmatch


class OtherHost(ValueError):
    """The host of a request is not allowed; the message names it."""


class StartHosts:
    """The hosts of DQ_START_HOSTS with their subdomains; none: any host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = frozenset(hosts)

    def check_fed(self, request: Request) -> None:
        """Check a request from a start key, and mark it.

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
        """Check a request that a worker stores.

        Args:
            followed: it is a redirect or a retry. A request from a callback may go to any host, and loses the
                mark, which it may have copied with the meta of its page.
        Raises:
            OtherHost: it may not be crawled.
        """
        if self._hosts and _FED in request.meta:
            if followed:
                self._check(request, "redirected to ")
            else:
                del request.meta[_FED]

    def _check(self, request: Request, how: str) -> None:
        try:
            host = (urlparse_cached(request).hostname or "").rstrip(".")
        except ValueError as error:
            raise OtherHost(f"{how}a URL that cannot be parsed, with DQ_START_HOSTS") from error
        labels = host.split(".") if ":" not in host else [host]  # an IPv6 zone may end like a listed host
        is_name = ":" in host or _NAME(host)
        if not (is_name and any(".".join(labels[n:]) in self._hosts for n in range(len(labels)))):
            raise OtherHost(f"{how}{host!a:.260}, which is not among DQ_START_HOSTS")
