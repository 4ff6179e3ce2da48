"""A frontier on a real Redis, called without await, and workers whose exchanges a test makes one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any
from uuid import uuid4

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scrapy_dq.frontier import Frontier, keys, limit, peek
from scrapy_dq.frontier.answers import Joined, Receipt, Rejoined
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.model import (
    Admission,
    Block,
    Identity,
    Limits,
    Order,
    Parentless,
    Seeding,
    Seen,
    Sent,
    StartKeys,
    StartQueue,
    Status,
    Terms,
)
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Fail, Move, Put, Release
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from support import stored, stored_counts
from support.stored import HISTORY as HISTORY

IDENTITY = Identity("fingerprinter", "spider", "{}")
PROGRAM = Identity(
    "", "", "", keep_seen=None, partition_by="", limits=None, order_given=False, seen_given=False
)
"""A program without a spider, such as a Queue."""
NO_TERMS = Terms()


def limited(delay_s: float = 0.0, concurrency: int = 0, **own: tuple[float | None, int | None]) -> Identity:
    """Return the identity of a crawl with limits. *own* has the limits of single partitions."""
    return replace(IDENTITY, limits=Limits(delay_s, concurrency, own))


SLOW = limited(100.0)
NARROW = limited(concurrency=2)

PARTITIONINGS: dict[str, Callable[[int], bytes]] = {
    "none": lambda n: b"",
    "one": lambda n: b"a {slot}: \xc3\xa9",
    "slots": lambda n: b"slot %d" % (n % 3),
    "own": lambda n: b"slot %06d" % n,
}
"""Functions that choose an entry's partition by its number.

Entries have no partition, the same one for all entries, one of three, or a separate one for each entry.
"""
partitioning = PARTITIONINGS["none"]
"""The function that `put` uses. The fixture `partitioning` replaces it."""


def partition_of(n: int) -> bytes:
    """Return the partition that `put` gives to entry number *n*."""
    return partitioning(n)


def by_partition(numbers: Collection[int]) -> dict[bytes, list[int]]:
    """Return the *numbers* of entries by partition, each list in the given order.

    So a test can compare the order of all entries if there are no partitions, and otherwise the order within
    each partition.
    """
    found: dict[bytes, list[int]] = {}
    for n in numbers:
        found.setdefault(partition_of(n), []).append(n)
    return found


def entry_id(n: int) -> bytes:
    """Return the id of entry number *n*."""
    return b"%012d" % n


def put(
    n: int,
    priority: int = 0,
    *,
    start: int = StartQueue.SHARED,
    admission: Admission = Admission.ID,
    token: bytes | None = None,
    payload: bytes = b"payload",
    partition: bytes | None = None,
    due_in: float = 0.0,
    not_before_s: float = 0.0,
    reason: str = "",
) -> Put:
    """Return a put of entry number *n*. By default, its token is its id."""
    return Put(
        entry_id(n),
        admission,
        entry_id(n) if token is None else token,
        priority,
        start,
        payload,
        partition=partition_of(n) if partition is None else partition,
        due_at=time.monotonic() + due_in if due_in else 0.0,
        not_before_s=not_before_s,
        reason=reason,
    )


def puts(partition: bytes, count: int, begin: int = 0) -> list[Move]:
    """Return puts of *count* entries in one partition, numbered from *begin*."""
    return [put(n, partition=partition) for n in range(begin, begin + count)]


def ack(n: int, *, never_sent: bool = False) -> Ack:
    return Ack(entry_id(n), never_sent)


def release(n: int) -> Release:
    return Release(entry_id(n))


def bury(n: int, reason: str = "undecodable") -> Bury:
    return Bury(entry_id(n), reason)


def decline(n: int, reason: str = "no callback", fingerprint: bytes = b"") -> Decline:
    return Decline(entry_id(n), reason, fingerprint)


def fail(n: int, reason: str = "not downloaded", *, never_sent: bool = False) -> Fail:
    return Fail(entry_id(n), reason, f"http://localhost/{n}", never_sent)


def again(
    n: int, priority: int = 0, *, as_number: int = 0, payload: bytes = b"payload", due_in: float = 0.0
) -> Again:
    """Return the move that stores entry number *n* again as number *as_number*, by default n + 100."""
    return Again(
        entry_id(n),
        entry_id(as_number or n + 100),
        payload,
        priority,
        StartQueue.SHARED,
        time.monotonic() + due_in,
    )


def sent(n: int, ago: float | None = 0.0, partition: bytes | None = None) -> Sent:
    """Return the note that entry *n* was sent *ago* seconds ago. None means that it is never sent."""
    of = partition_of(n) if partition is None else partition
    return Sent(of, entry_id(n), None if ago is None else time.monotonic() - ago)


def block(partition: bytes, seconds: float) -> Block:
    return Block(partition, time.monotonic() + seconds)


def numbers(receipt: Receipt) -> list[int]:
    """Return the numbers of the entries in *receipt*'s leases, in order."""
    return [int(lease.entry_id) for lease in receipt.leases]


def partitions(receipt: Receipt) -> list[bytes]:
    """Return the partitions of *receipt*'s leases, in order."""
    return [lease.partition for lease in receipt.leases]


def waits(receipt: Receipt) -> dict[int, float | None]:
    """Return by entry number how many seconds each lease waits, rounded to 10 s. None means no wait."""
    now = time.monotonic()
    return {
        int(lease.entry_id): None if lease.send_at is None else round(lease.send_at - now, -1)
        for lease in receipt.leases
    }


class LiveFrontier:
    """One crawl on a real Redis. `call` runs a method of its `Frontier` and returns the result."""

    def __init__(
        self,
        url: str,
        crawl: str,
        order: Order = Order.PRIORITY_LIFO,
        seen: Seen = Seen.EXACT,
        start_keys: StartKeys | None = None,
    ) -> None:
        self.crawl, self.order, self.seen = crawl, order, seen
        self.ahead_ms = 0
        """The largest `Terms.ahead_s` so far, in ms: how early a request may be leased before it is sent."""
        self._limits_replaced = False
        self._loop = asyncio.new_event_loop()
        self._client = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self.frontier = Frontier(self._client, crawl, order, seen, start_keys)
        self.frontier.keep_failed = stored.KEEP_FAILED
        self.redis = redis.Redis.from_url(url)
        """A client that reads keys without the frontier."""

    def run(self, work: Awaitable[Any]) -> Any:
        """Await *work*, which uses `frontier`, and return its result."""
        return self._loop.run_until_complete(work)

    def asked(self, method: str, *args: Any, **named: Any) -> Any:
        """Return the coroutine of a call."""
        return getattr(self.frontier, method)(*args, **named)

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        if method == "limit":
            return self._limit(*args, **named)
        if method == "census":
            return peek(self.redis, self.crawl).census
        before = self._limits_set() if method == "rejoin" else None
        answer = self.run(self.asked(method, *args, **named))
        if isinstance(answer, Joined):
            self._limits_replaced |= answer.limits_before is not None
        elif method == "rejoin":  # after a roll-back to an earlier run, a rejoin sets its worker's limits
            self._limits_replaced |= before != self._limits_set()
        return answer

    def _limits_set(self) -> bytes | None:
        with suppress(redis.ResponseError):  # another program has replaced the key
            return self.redis.hget(self.key("meta"), "limits_set")
        return None

    def _limit(
        self, partition: bytes, delay_s: float | None = None, concurrency: int | None = None,
        block_s: float | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        given = {"delay_s": delay_s, "concurrency": concurrency, "block_s": block_s, **more}
        answer = limit(self.redis, self.crawl, partition.decode(), **given)
        return answer and astuple(answer)

    def limit(self, partition: bytes, **changed: Any) -> tuple[float, int, float] | None:
        """Change a partition's limits as a user does.

        Return its delay, its concurrency, and how many seconds it is still blocked, rounded to 10 s.
        """
        answer = self.call("limit", partition, **changed)
        self.state()
        return answer and (*answer[:2], round(answer[2], -1))

    def advance(self, seconds: float) -> None:
        """Let time pass on the frontier's clock."""
        self.change_count("offset", round(seconds * 1000))

    def count(self, name: str) -> int:
        """Return one of the stored counts."""
        return stored_counts.count(self.redis, self.crawl, name)

    def change_count(self, name: str, by: int) -> None:
        """Change one of the stored counts."""
        stored_counts.change_count(self.redis, self.crawl, name, lambda number: number + by)

    def key(self, name: str) -> str:
        return keys.prefix(self.frontier.name) + name

    def state(self) -> stored.State:
        # New limits from settings do not move partitions to another set at once, but at their next turn.
        return stored.stored_state(
            self.redis, self.crawl, self.order, self.ahead_ms, strict=not self._limits_replaced
        )

    def dump(self) -> stored.Dump:
        return stored.dump(self.redis, self.crawl)

    def roll_back(self, snapshot: stored.Dump) -> None:
        stored.roll_back(self.redis, self.crawl, snapshot)

    def key_names(self) -> set[str]:
        """Return the crawl's key names without prefix. While the crawl exists, its history is left out."""
        prefix = self.key("")
        found = {key.decode().removeprefix(prefix) for key in stored.crawl_keys(self.redis, self.crawl)}
        return found - set(HISTORY) if "meta" in found else found

    def members(self) -> set[str]:
        return {member.worker_id for member in self.call("members")}

    def close(self) -> None:
        """Delete the crawl, or this shard of it, and disconnect."""
        stored.roll_back(self.redis, self.frontier.name, {})
        self.disconnect()

    def disconnect(self) -> None:
        """Disconnect, and leave all keys unchanged."""
        self.redis.close()
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()


def let_idle(live: LiveFrontier, name: str, consumer: str = "crawl") -> None:
    """Make a stream's pending messages look as if *consumer* had read them an hour ago."""
    group = f"scrapy_dq:{live.key('')[:-1]}"
    if live.redis.exists(name) and live.redis.xinfo_groups(name):
        for each in live.redis.xpending_range(name, group, "-", "+", 1000):
            live.redis.xclaim(name, group, consumer, 0, [each["message_id"]], idle=3_600_000)
    live.redis.hdel(live.key("meta"), f"stream {name}")


class HandWorker:
    """A worker with the state of one process. It sends only the calls that a test makes."""

    def __init__(
        self, live: LiveFrontier, worker_id: str, crawl: Identity = IDENTITY, host: str = ""
    ) -> None:
        """*host*: the worker's host. By default, each worker has its own host."""
        self.live = live
        self.worker_id = worker_id
        self.joined = live.call("join", worker_id, {"host": host or worker_id}, uuid4().hex, crawl)
        self.epoch, self.run, self.crawl = self.joined.epoch, self.joined.run, crawl
        self.seq, self.registered = 1, self.joined.registered
        self.held: set[bytes] = set()
        self.last: dict[str, Any] = {}

    def exchange(
        self, *moves: Move, want: int = 0, seeding: int = 0, terms: Terms = NO_TERMS, **other: Any
    ) -> Receipt:
        """Make the next exchange. *other* replaces fields of `Exchange`."""
        self.live.ahead_ms = max(self.live.ahead_ms, round(terms.ahead_s * 1000))
        now = time.monotonic()
        self.last = Exchange(
            self.worker_id, self.epoch, self.run, self.seq, want, Seeding(seeding), len(self.held),
            pack_moves(moves, now), pack_terms(terms, now), self.registered,
        )._replace(**other)  # fmt: skip
        receipt = self.send(self.last)
        self.seq += receipt.applied or receipt.status is Status.FINISHED
        if receipt.applied:
            self.held -= {move.entry_id for move in moves if not isinstance(move, Put)}
            self.held |= {lease.entry_id for lease in receipt.leases}
        return receipt

    def take(self, count: int, terms: Terms = NO_TERMS) -> list[int]:
        """Lease *count* entries, or all if there are fewer. One exchange grants only the worker's share."""
        taken: list[int] = []
        while len(taken) < count and (got := numbers(self.exchange(want=count - len(taken), terms=terms))):
            taken += got
        return taken

    def note(self, *notes: Sent | Block, want: int = 0) -> Receipt:
        """Make an exchange with *notes* and no moves."""
        return self.exchange(want=want, terms=Terms(notes=notes))

    def send(self, exchange: Exchange) -> Receipt:
        """Send an exchange, or repeat it. The answer does not change this worker's state."""
        return self.live.call("exchange", exchange)

    def rejoin(
        self,
        new_id: str,
        *,
        held: Collection[int] | None = None,
        parentless: Parentless = Parentless.NONE,
        run: int | None = None,
        seeding: int = 1,
    ) -> Rejoined:
        """Rejoin as *new_id*, and claim the leases of entries *held*, by default of all in `self.held`."""
        ids = sorted(self.held) if held is None else [entry_id(n) for n in held]
        reply = self.live.call(
            "rejoin",
            Rejoin(
                new_id, self.worker_id, self.epoch, self.run if run is None else run, ids, parentless,
                Seeding(seeding),
            ),
            {"host": new_id}, self.crawl,
        )  # fmt: skip
        if reply.status is Status.OK:
            self.worker_id, self.run, self.seq, self.held = new_id, reply.run, 1, set(reply.owned)
            self.registered = reply.registered
        return reply

    def leave(self, keep_seen: bool = False, reason: str = "") -> tuple[int, bool]:
        return self.live.call("leave", self.worker_id, self.epoch, self.run, keep_seen, reason=reason)

    def fence(self, worker_id: str, *, gone: bool = False) -> str:
        return self.live.call("fence", worker_id, self.epoch, self.run, gone)[0]

    def drain(self, worker_id: str, limit: int = 100, max_attempts: int = 3) -> tuple[int, int, int]:
        return self.live.call("drain", worker_id, self.epoch, self.run, limit, max_attempts)

    def reclaim(self, worker_id: str, max_attempts: int = 3) -> None:
        """Fence a dead worker, and drain it until it has no leases."""
        self.fence(worker_id, gone=True)
        while self.drain(worker_id, 100, max_attempts)[2]:
            pass


FOREIGN: dict[str, Callable[[LiveFrontier, str], Any]] = {
    "string": lambda live, name: live.redis.set(live.key(name), "not ours"),
    "list": lambda live, name: live.redis.rpush(live.key(name), "not ours"),
    "set": lambda live, name: live.redis.sadd(live.key(name), "not ours"),
    "hash": lambda live, name: live.redis.hset(live.key(name), "not ours", "not ours"),
    "zset": lambda live, name: live.redis.zadd(live.key(name), {"not ours": 1.5}),
}
"""For each Redis type: a function that writes a foreign value into a key of the crawl."""
