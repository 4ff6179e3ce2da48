"""A frontier on a real Redis, called without await, and workers whose every exchange a test makes by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.frontier import Identity, pack_moves
from scrapy_dq.frontier.model import (
    Ack,
    Admission,
    Bury,
    Fail,
    Move,
    Order,
    Parentless,
    Put,
    Receipt,
    Rejoined,
    Release,
    Status,
)
from support import stored

IDENTITY = Identity("fingerprinter", "spider", "{}")


def entry_id(n: int) -> bytes:
    """Return the id of entry number *n*."""
    return b"%012d" % n


def put(
    n: int,
    priority: int = 0,
    *,
    start: bool = False,
    admission: Admission = Admission.ID,
    token: bytes | None = None,
    payload: bytes = b"payload",
) -> Put:
    """Return a put of entry number *n*; by default nothing equals it."""
    return Put(entry_id(n), admission, entry_id(n) if token is None else token, priority, start, payload)


def ack(n: int) -> Ack:
    return Ack(entry_id(n))


def release(n: int) -> Release:
    return Release(entry_id(n))


def bury(n: int, reason: str = "undecodable") -> Bury:
    return Bury(entry_id(n), reason)


def fail(n: int, reason: str = "not downloaded") -> Fail:
    return Fail(entry_id(n), reason, f"http://localhost/{n}")


def numbers(receipt: Receipt) -> list[int]:
    """Return the numbers of the entries leased by *receipt*, in its order."""
    return [int(lease.entry_id) for lease in receipt.leases]


class LiveFrontier:
    """One crawl on a real Redis; `call` runs a method of its `Frontier` to the end."""

    def __init__(self, url: str, crawl: str, order: Order = Order.PRIORITY_LIFO) -> None:
        self.crawl = crawl
        self.order = order
        self._loop = asyncio.new_event_loop()
        self._client = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self.frontier = Frontier(self._client, crawl, order, stored.KEEP_FAILED)
        self.redis = redis.Redis.from_url(url)
        """To look at the keys, past the frontier."""

    def call(self, method: str, *args: Any) -> Any:
        return self._loop.run_until_complete(getattr(self.frontier, method)(*args))

    def state(self) -> stored.State:
        return stored.stored_state(self.redis, self.crawl, self.order)

    def dump(self) -> stored.Dump:
        return stored.dump(self.redis, self.crawl)

    def roll_back(self, snapshot: stored.Dump) -> None:
        stored.roll_back(self.redis, self.crawl, snapshot)

    def key_names(self) -> set[str]:
        """Return the crawl's keys, without what all of them begin with."""
        return {key.decode().rpartition("}:")[2] for key in stored.crawl_keys(self.redis, self.crawl)}

    def members(self) -> set[str]:
        return {member.worker_id for member in self.call("members")}

    def close(self) -> None:
        """Delete the crawl and disconnect."""
        stored.roll_back(self.redis, self.crawl, {})
        self.redis.close()
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()


class HandWorker:
    """A worker that knows what one process knows, and sends only what a test says."""

    def __init__(self, live: LiveFrontier, worker_id: str, crawl: Identity = IDENTITY) -> None:
        self.live = live
        self.worker_id = worker_id
        self.joined = live.call("join", worker_id, {"host": worker_id}, uuid4().hex, crawl)
        self.epoch, self.run = self.joined.epoch, self.joined.run
        self.seq = 1
        self.held: set[bytes] = set()
        self.last: dict[str, Any] = {}

    def exchange(self, *moves: Move, want: int = 0, seeding: int = 0, **other: Any) -> Receipt:
        """Make the next exchange; *other* arguments of `Frontier.exchange` replace the right ones."""
        self.last = {
            "worker_id": self.worker_id, "epoch": self.epoch, "run": self.run, "seq": self.seq, "want": want,
            "seeding": seeding, "held": len(self.held), "moves": pack_moves(moves),
        } | other  # fmt: skip
        receipt = self.send(self.last)
        if receipt.applied:
            self.seq += 1
            self.held -= {move.entry_id for move in moves if not isinstance(move, Put)}
            self.held |= {lease.entry_id for lease in receipt.leases}
        return receipt

    def take(self, count: int) -> list[int]:
        """Lease *count* entries, in as many exchanges as its share makes of it, or all that there are."""
        taken: list[int] = []
        while len(taken) < count and (got := numbers(self.exchange(want=count - len(taken)))):
            taken += got
        return taken

    def send(self, exchange: dict[str, Any]) -> Receipt:
        """Send the bytes of an exchange (again), and learn nothing from the answer."""
        return self.live.call("exchange", *exchange.values())

    def rejoin(
        self,
        new_id: str,
        *,
        held: Collection[int] | None = None,
        parentless: Parentless = Parentless.NONE,
        run: int | None = None,
    ) -> Rejoined:
        """Rejoin as *new_id*, keeping the entries numbered *held*, or all that it believes to hold."""
        ids = sorted(self.held) if held is None else [entry_id(n) for n in held]
        reply = self.live.call(
            "rejoin", new_id, {"host": new_id}, self.worker_id, self.epoch, self.run if run is None else run,
            ids, parentless, False,
        )  # fmt: skip
        if reply.status is Status.OK:
            self.worker_id, self.run, self.seq, self.held = new_id, reply.run, 1, set(reply.owned)
        return reply

    def leave(self, keep_seen: bool = False) -> tuple[int, bool]:
        return self.live.call("leave", self.worker_id, self.epoch, self.run, keep_seen)

    def fence(self, worker_id: str) -> str:
        return self.live.call("fence", worker_id, self.epoch, self.run)

    def drain(self, worker_id: str, limit: int = 100, max_attempts: int = 3) -> tuple[int, int, int]:
        return self.live.call("drain", worker_id, self.epoch, self.run, limit, max_attempts)

    def reclaim(self, worker_id: str, max_attempts: int = 3) -> None:
        """Fence a dead worker and drain it to the end."""
        self.fence(worker_id)
        while self.drain(worker_id, 100, max_attempts)[2]:
            pass
