"""Who else could read or change a crawl on a Redis of another host: rules for `scrapy dq doctor`."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scrapy_dq.backend.connection import speaks_tls
from scrapy_dq.backend.health import WARN, Finding
from scrapy_dq.backend.sentinel import pools_of

FIXED = {
    "redis_version": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey_version": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""By the field of INFO, the first version of each series without CVE-2025-49844, by which whoever may run
scripts can run code in the server. Source: the release notes of Redis and Valkey of 2025-10-03."""


def exposure(client: Any, info: Mapping[str, Any], *, signed: bool) -> Iterator[Finding]:
    """Yield warnings about the way to a Redis; none if it is on this host.

    Args:
        client: a client of `new_client`.
        info: its INFO; empty: it is not allowed.
        signed: DQ_SIGNING_KEYS is set.
    """
    pools = pools_of(client)
    if all(is_here(host) for pool in pools for host in _hosts_of(pool)):
        return
    options = pools[0].connection_kwargs
    if not speaks_tls(pools[0]):
        yield Finding(
            "TLS", WARN,
            "requests, and the password, are sent to Redis on another host without encryption. Use rediss://",
        )  # fmt: skip
    elif options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        yield Finding(
            "TLS", WARN,
            "ssl_cert_reqs = none: whoever answers is taken for Redis. Set ssl_ca_certs in its place",
        )  # fmt: skip
    if not options.get("password") and options.get("credential_provider") is None:
        yield Finding(
            "password", WARN,
            "Redis on another host asks for none: everybody who reaches it can change the crawl. Make a user "
            "(`scrapy dq doctor --acl crawler`)",
        )  # fmt: skip
    if not signed:
        yield Finding(
            "signing", WARN,
            "entries are not signed, and Redis is on another host: everybody who can write there decides "
            "what is crawled, and with which callback. Set DQ_SIGNING_KEYS",
        )  # fmt: skip
    yield from patches(info)


def _hosts_of(pool: Any) -> list[str]:
    """Return the hosts that *pool* may connect to: of a Redis Cluster, all nodes that its URL names."""
    if hasattr(pool, "route"):
        return [host for host, _ in pool.route.nodes]
    return [str(pool.connection_kwargs.get("host", ""))]


def is_here(host: str) -> bool:
    """Tell whether *host* is this machine, or empty: a socket."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")


def patches(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a warning if the version of Redis, or Valkey, has a known hole for those who may run scripts."""
    field = "valkey_version" if "valkey_version" in info else "redis_version"
    version = tuple(int(part) for part in str(info.get(field, "")).split(".") if part.isdigit())[:3]
    fixed = FIXED[field]
    of_series = [each for each in fixed if each[:2] == version[:2]]
    if not version or version > fixed[-1] or (of_series and version >= of_series[0]):
        return
    name, mended = field.removesuffix("_version").capitalize(), ", ".join(map(_dotted, fixed))
    yield Finding(
        "patches", WARN,
        f"{name} {_dotted(version)} has CVE-2025-49844, unless your distribution has mended it: who may run "
        f"scripts can run code in the server. Mended in {mended}",
    )  # fmt: skip


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
