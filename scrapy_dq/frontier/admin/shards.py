"""The shards of a crawl as a program sees them from outside: where each shard is, and whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from redis.exceptions import ConnectionError, RedisError, ResponseError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import is_answer, moved_to
from scrapy_dq.frontier.keys import HOME, Shard, shard_of
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import answer_of, refuse

T = TypeVar("T")
_MAX_TRIES = 4
"""Number of tries in a cluster: one at a node that does not answer, two at nodes that name another node, and
one at the right node."""


class Shards:
    """The shards of a crawl, home first, each with a blocking client for its keys."""

    def __init__(
        self, crawl: str, count: int, connect: Callable[[int], Any], *, strict: bool = False
    ) -> None:
        """
        Args:
            connect: returns the client for the keys of a shard.
            strict: whether `each` raises the error of any shard, unless its caller decides otherwise.
        """
        self._shards = [(connect(number), Shard(crawl, number)) for number in range(count)]
        self._strict = strict
        self.unreachable: set[int] = set()
        """Shards that did not answer. They are not asked again, because each try could take a time-out."""
        self._silent: set[object] = set()
        """Nodes of a cluster that did not answer. Other shards on these nodes are not asked."""

    def __iter__(self) -> Iterator[tuple[Any, Shard]]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def of_partition(self, partition: str) -> tuple[Any, Shard]:
        """Return the shard in which a partition lives, with its client."""
        return self._shards[shard_of(partition.encode(), b"", len(self))]

    def ask_all(self) -> None:
        """Forget which shards did not answer, so that the next call asks all shards again."""
        self.unreachable.clear()
        self._silent.clear()

    def each(self, call: Callable[[Any, Shard], T], *, strict: bool | None = None) -> Iterator[T]:
        """Yield the result of *call* for each shard that answers, home first.

        Shards that do not answer are added to `unreachable`.

        In a cluster, *call* is repeated if it has asked a node that does not have the shard.

        Args:
            strict: raise the error of any shard; None: as in the constructor.
        Raises:
            redis.exceptions.RedisError: home does not answer, or another shard has answered with an error.
        """
        strict = self._strict if strict is None else strict
        for client, shard in self._shards:
            if shard.number in self.unreachable and not strict:
                continue
            try:
                found = _called(call, client, shard, self._silent if shard.number else None)
            except (RedisError, OSError) as error:
                if strict or shard.number == HOME or is_answer(error):
                    raise
                self.unreachable.add(shard.number)
            else:
                yield found


def shards_of(client: Any, crawl: str) -> Shards:
    """Return the shards of a crawl; blocking.

    Args:
        client: a `redis` client that decodes nothing, for all shards; Shards are returned unchanged.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    if isinstance(client, Shards):
        return client
    return Shards(crawl, count_of(client, crawl) or 1, lambda number: client, strict=True)


def count_of(client: Any, crawl: str) -> int:
    """Return the stored number of shards of a crawl; 0 if the crawl is absent or unreadable; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """

    def read(client: Any, shard: Shard) -> Any:
        return client.hmget(keys.meta(shard), "epoch", "shards")

    try:
        epoch, stored = at_home(client, crawl, read)
    except ResponseError as error:
        if str(error).startswith("WRONGTYPE"):
            return 0  # the caller's next read of the crawl raises an error
        raise
    if epoch is None:
        return 0
    # While the crawl is being imported or moved, the field has two numbers: `<before>><after>`.
    return max(map(int, (stored or b"1").split(b">")))


def at_home(client: Any, crawl: str, call: Callable[[Any, Shard], T]) -> T:
    """Return the result of *call* for home, as `Shards.each` would; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    if isinstance(client, Shards):
        client, _ = next(iter(client))
    return _called(call, client, Shard(crawl, HOME))


def command(client: Any, shard: Shard, transition: str, *args: Any) -> list[Any] | None:
    """Run a script that changes a shard; return its answer after OK, or None without a crawl. Blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: the crawl cannot be changed, or another process has changed it.
    """
    reply = Script(transition).call_blocking(client, keys.fixed(shard), *args)
    refuse(reply)
    return None if reply[0] == b"ABSENT" else answer_of(reply)


def in_cluster(client: Any) -> bool:
    """Tell whether a client is for a Redis Cluster (backend/cluster.py), with crawls on different nodes."""
    return hasattr(getattr(client, "connection_pool", None), "route")


def node_of(client: Any) -> object:
    """Return the address of the node to which a client sends commands now; None: there is no cluster."""
    return client.connection_pool.route.address if in_cluster(client) else None


def _called(
    call: Callable[[Any, Shard], T], client: Any, shard: Shard, silent: set[object] | None = None
) -> T:
    silent = set() if silent is None else silent
    finds, failed = in_cluster(client), False
    for last in (False,) * (_MAX_TRIES - 1) + (True,):
        node = node_of(client)
        try:
            if node in silent:
                client.connection_pool.route.failed(node)
                client.connection_pool.disconnect()  # it would ask this node again
                raise ConnectionError("the node did not answer before")
            return call(client, shard)
        except ResponseError as error:
            if last or not finds or moved_to(error) is None:  # after MOVED, the client knows the right node
                raise
        except (RedisError, OSError):
            # The client may have asked a node that does not have this shard. Now it asks the next node.
            if last or failed or not finds:
                if finds:
                    silent.add(node)
                raise
            failed = True
    raise AssertionError("the last try returns or raises")
