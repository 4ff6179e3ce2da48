"""Clients of a Redis Cluster. All keys of a shard are on one node, and the shard's connections lead there.

A node without the shard's slot answers MOVED, and names the right node. The node has not applied the script,
so the script is sent again (`frontier/scripts.py`). While the cluster moves the slot, key by key, the crawl
pauses, because every script fails before it writes anything. Each script declares the key `never`, which
never exists (`frontier/keys.py`), and a node that is moving a slot refuses scripts with an absent key.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from scrapy_dq.backend.sentinel import close_at_once, mixed
from scrapy_dq.frontier.blocking import reply_of
from scrapy_dq.frontier.errors import moved_to
from scrapy_dq.settings.redis_address import split_cluster_url

Address = tuple[str, int]


class Route:
    """Where the connections of some clients lead: to one of *nodes*, or to the node that MOVED has named."""

    def __init__(self, nodes: tuple[Address, ...]) -> None:
        self.nodes = nodes
        self._lock = threading.Lock()  # the heartbeat has its own thread
        self._next = 0
        self._named: Address | None = None

    @property
    def address(self) -> Address:
        """Host and port of the node to connect to."""
        with self._lock:
            return self._named or self.nodes[self._next % len(self.nodes)]

    def another(self) -> Route:
        """Return a route for another slot. It begins at the same node, because this node has answered."""
        route = Route(self.nodes)
        with self._lock:
            route._next, route._named = self._next, self._named
        return route

    def named(self, address: Address) -> None:
        """Record that a node has named another node for the shard's slot."""
        with self._lock:
            self._named = address

    def failed(self, address: Address) -> None:
        """Record that a node cannot be reached, or does not serve. Then the next node is asked."""
        with self._lock:
            if address == self._named:
                self._named = None
            elif self._named is None and address == self.nodes[self._next % len(self.nodes)]:
                self._next += 1


def cluster_client(cls: Any, url: str, route: Route | None = None, **options: Any) -> Any:
    """Return a client of *cls* for the keys of one slot.

    Args:
        url: `redis+cluster://[user:password@]host[:port][,host[:port]...][?option=value...]`.
        route: the route of other clients for the same slot; None means a new one.
    Raises:
        ValueError: the URL cannot be used.
    """
    hosts, node_url = split_cluster_url(url)
    client = cls.from_url(node_url, **options)
    client.connection_pool.route = route or Route(hosts)
    return client


def follow(pool: Any) -> None:
    """Make the connections of *pool* follow its route, if the pool belongs to a cluster."""
    if hasattr(pool, "route"):
        pool.connection_class = mixed(_Follows, pool.connection_class)
        pool.connection_class._route = pool.route


async def find_node(client: Any, key: str, *, patient: bool = False) -> None:
    """Find the node of *key* for a client with a route. All clients with this route then lead there.

    Args:
        patient: if a node does not answer, ask the next one instead of raising the error.
    Raises:
        redis.exceptions.RedisError: no node has named the right one.
    """
    for last in _tries(client):
        try:
            await reply_of(client.exists(key))
            return
        except ResponseError as error:
            if last or moved_to(error) is None:
                raise
        except (ConnectionError, TimeoutError, OSError):
            if last or not patient:
                raise


def masters(client: Any) -> list[Address]:
    """Return the masters that have slots; empty if the client belongs to no cluster. Blocking.

    Raises:
        redis.exceptions.RedisError: no node has named them, or this user may not ask.
    """
    for last in _tries(client):
        try:
            ranges = client.execute_command("CLUSTER", "SLOTS")
        except (ConnectionError, TimeoutError, OSError):
            if last:  # else the next node is asked
                raise
        else:
            # If a node does not know a host name, its own or another node's, it omits the name or says "?".
            here, _ = client.connection_pool.route.address
            named = [
                (bytes(master[0] or b"?").decode("utf-8", "replace"), int(master[1]))
                for _, _, master, *_ in ranges
            ]
            return sorted({(here if host == "?" else host, port) for host, port in named})
    return []


def client_of_node(client: Any, address: Address) -> Any:
    """Return a client like *client*, which belongs to a cluster, for commands to one node."""
    of_all = client.connection_pool
    base, route = of_all.connection_class, Route((address,))
    follows = type(base.__name__, (base,), {"_route": route})
    pool = type(of_all)(connection_class=follows, **of_all.connection_kwargs)
    pool.route = route
    return type(client)(connection_pool=pool)


def _tries(client: Any) -> tuple[bool, ...]:
    return (False, False, False, True) if hasattr(client.connection_pool, "route") else ()


def tag_of(key: str | bytes) -> str:
    """Return a hash tag, with its braces, that puts another key into the slot of *key*.

    Raises:
        ValueError: no hash tag can do that.
    """
    name = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
    tagged = re.search(r"\{([^}]*)\}", name)
    tag = tagged[1] if tagged and tagged[1] else name
    if "}" in tag:
        raise ValueError(f"no hash tag leads to the slot of {name!a}")
    return f"{{{tag}}}"


def is_down(error: Exception) -> bool:
    """Tell whether a node reports that it serves nothing, because of a failover or because it is cut off."""
    return "CLUSTERDOWN" in f"{type(error).__name__} {error}".upper()


def pool_address(pool: Any) -> str:
    """Return the address of a pool of `cluster_client`, for messages, without a login."""
    return f"{','.join(f'{host}:{port}' for host, port in sorted(pool.route.nodes))} (Redis Cluster)"


def address_of(client: Any) -> str:
    """Return the node that a client's connections lead to now; empty if it belongs to no cluster."""
    route = getattr(client.connection_pool, "route", None)
    return "{}:{}".format(*route.address) if route else ""


_ERRORS = (ResponseError, ConnectionError, TimeoutError, OSError)


class _Follows:
    _route: Route
    host: str
    port: int

    async def _connect(self) -> Any:
        self.host, self.port = self._route.address
        try:
            return await reply_of(super()._connect())  # type: ignore[misc]
        except _ERRORS as error:
            self._leads_away(error)
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await reply_of(super().read_response(*args, **options))  # type: ignore[misc]
        except _ERRORS as error:
            if self._leads_away(error):
                await close_at_once(self)
            raise

    def _leads_away(self, error: Exception) -> bool:
        """Record an error about the node; return whether the node must not be asked again."""
        if (moved := moved_to(error)) is not None:
            self._route.named((moved[0] or self.host, moved[1]))
        elif isinstance(error, ResponseError) and not is_down(error):
            return False
        else:  # also a node that is cut off from the others, which answers CLUSTERDOWN
            self._route.failed((self.host, self.port))
        return True
