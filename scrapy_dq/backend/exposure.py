"""Who else could read or change a crawl on a Redis of another host: rules for `scrapy dq doctor`."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

from scrapy_dq.backend.connection import speaks_tls
from scrapy_dq.backend.health import WARN, Finding
from scrapy_dq.backend.sentinel import pools_of
from scrapy_dq.hostnames import is_loopback


def exposure(client: Any) -> Iterator[Finding]:
    """Yield warnings about the way to the Redis of a client of `new_client`; none if it is on this host."""
    pools = pools_of(client)
    if all(not host or is_loopback(host) for pool in pools for host in _hosts_of(pool)):
        return
    options = pools[0].connection_kwargs
    if not speaks_tls(pools[0]):
        yield Finding("TLS", WARN, "the way to Redis on another host is not encrypted. Use rediss://")
    elif options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        yield Finding("TLS", WARN, "ssl_cert_reqs = none: whoever answers is Redis. Set ssl_ca_certs instead")
    if not options.get("password") and options.get("credential_provider") is None:
        text = "Redis on another host asks for none. Make a user (`scrapy dq doctor --acl crawler`)"
        yield Finding("password", WARN, text)


def _hosts_of(pool: Any) -> list[str]:
    """Return the hosts that *pool* may connect to: of a Redis Cluster, all in its URL; "": a socket."""
    if hasattr(pool, "route"):
        return [host for host, _ in pool.route.nodes]
    return [str(pool.connection_kwargs.get("host", ""))]
