"""Stops a script at one of its writes, and then runs the rest of the crawl, which must lose no entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import scripts
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import FrontierError, Seen, Status, Terms
from scrapy_dq.frontier.moves import Ack, Put
from scrapy_dq.frontier.worker.audit import audit
from support.live_frontier import IDENTITY, NO_TERMS, HandWorker, LiveFrontier, ack, numbers, put

DENIED, BUG = "NOPERM this user may not run", "an error in Lua at"
EachStop = Callable[..., Iterator[tuple[LiveFrontier, Callable[[Callable[[], Any]], Any]]]]
WRITES = (
    "HSET", "HDEL", "HINCRBY", "HINCRBYFLOAT", "SADD", "SREM", "ZADD", "ZREM", "ZUNIONSTORE", "XREADGROUP",
    "XGROUP", "XACK", "XAUTOCLAIM", "RPUSH", "LPUSH", "LPOP", "LREM", "LSET", "LTRIM", "UNLINK",
)  # fmt: skip
SHADOW = """
local real, writes, refused, redis = redis, 0, {{}}, nil
local is_write = {{ {writes} }}
local function is_refused(name)
  if is_write[name] then writes = writes + 1 end
  local here = is_write[name] and writes == {stop_at}
  if here then real.call('SET', '{stopped}', '1') end
  if here and {denied} then refused[name] = true end
  return here or refused[name]
end
redis = {{
  sha1hex = real.sha1hex, REDIS_VERSION_NUM = real.REDIS_VERSION_NUM,
  call = function(...)
    if is_refused((...)) then error('{words} ' .. (...), 0) end
    return real.call(...)
  end,
  pcall = function(...)
    if is_refused((...)) then return {{ err = '{words} ' .. (...) }} end
    return real.pcall(...)
  end,
}}
"""
FEW_TOKENS = ("local LOAD, MAX_SPLITS = 200", "local LOAD, MAX_SPLITS = 0.001")
"""With this change of the Lua code, a compact `seen` splits buckets from the second fingerprint on."""
FIRST = scripts.lua_files()["keys"]
"""The text of the Lua file with which each script begins."""


class Stopper:
    """Stops one script at one of its writes. With DENIED, all later calls of this Redis command also fail."""

    def __init__(self, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
        self._live, self._monkeypatch, self._words = live, monkeypatch, words
        self._mark = f"stopped {live.crawl}"

    def stop(self, transition: str, at: int, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Make *call*. Return whether the script reached write *at*, and the answer (None after an error)."""
        shadow = SHADOW.format(
            writes=", ".join(f"{name} = true" for name in WRITES), stop_at=at, stopped=self._mark,
            words=self._words, denied=str(self._words == DENIED).lower(),
        )  # fmt: skip
        fill = scripts._fill

        def stopped(template: str, of: str, **texts: str) -> str:
            text = fill(template, of, **texts).replace(*FEW_TOKENS)
            return text.replace(FIRST, shadow + FIRST, 1) if of == transition else text

        client, stored = self._live.redis, self._live.frontier._scripts
        before = stored.get(transition)
        with self._monkeypatch.context() as patch:
            patch.setattr(scripts, "_fill", stopped)
            for built in ("source", "library"):
                patch.setattr(scripts, built, getattr(scripts, built).__wrapped__)
            if before is not None:
                stored[transition] = type(before)(transition)
            try:
                answer = call()
            except (FrontierError, redis.RedisError) as error:
                if self._words not in str(error):  # this is not the error that stops the script
                    raise
                answer = None
        self._live.frontier._denied = False
        stored.pop(transition, None)
        if before is not None:
            stored[transition] = before
        return bool(client.delete(self._mark)), answer


def is_marked(live: LiveFrontier) -> bool:
    return bool(live.redis.hexists(live.key("meta"), "torn"))


def ack_of(id_: bytes) -> Ack:
    return replace(ack(0), entry_id=id_)


def crawl_on(
    live: LiveFrontier,
    worker: HandWorker,
    expected: Collection[int] = (),
    done: Collection[int] = (),
    terms: Terms = NO_TERMS,
) -> set[bytes]:
    """Crawl to the end as workers do. Assert that no entry is lost or reported gone. Return the payloads."""
    served, payloads = {*done, *(int(i) for i in worker.held if i.isdigit())}, set[bytes]()
    for turn in range(100):
        for member in live.members() - {worker.worker_id}:
            worker.reclaim(member, max_attempts=9)
        live.advance(200)
        marked = is_marked(live)
        receipt = worker.exchange(*(ack_of(i) for i in sorted(worker.held)), want=40, terms=terms)
        if receipt.status is Status.RESYNC:
            worker.rejoin(f"again {turn}")
            continue
        served.update(int(lease.entry_id) for lease in receipt.leases if lease.entry_id.isdigit())
        payloads.update(lease.payload for lease in receipt.leases)
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
        if receipt.status is Status.FINISHED and not worker.held:
            break
    else:
        raise AssertionError(f"the run does not end: {receipt}")
    assert not marked
    assert not is_marked(live)
    census = receipt.census
    assert (census.waiting, census.in_flight, census.delayed, census.gone) == (0, 0, 0, 0)
    assert served >= set(expected)
    if live.frontier._seen is not Seen.COMPACT:  # after a stop, its count may be too low
        live.state()
    return payloads


def repeat(worker: HandWorker, moves: Collection[Any] = ()) -> Receipt:
    """Repeat the last exchange, which had *moves*, as a worker does, and use the answer.

    After RESYNC, rejoin, and repeat the puts and the moves of leases that are still held.
    """
    receipt = worker.send(worker.last)
    if receipt.applied:
        worker.seq += 1
        worker.held -= {move.entry_id for move in moves if not isinstance(move, Put)}
        worker.held |= {lease.entry_id for lease in receipt.leases}
    else:
        assert receipt.status is Status.RESYNC
        worker.rejoin(f"{worker.worker_id}+")
        worker.exchange(*(move for move in moves if isinstance(move, Put) or move.entry_id in worker.held))
    return receipt


def slot(n: int) -> bytes:
    return b"slot %d" % (n % 3)


def filled(live: LiveFrontier, identity: Any = IDENTITY) -> tuple[HandWorker, list[int]]:
    """Return a worker that holds five entries of a crawl of twelve, and these entries' numbers."""
    worker = HandWorker(live, "worker", identity)
    worker.exchange(*(put(n, n % 2, partition=slot(n)) for n in range(12)))
    return worker, taken(live, worker, 5)


def taken(live: LiveFrontier, worker: HandWorker, count: int) -> list[int]:
    held: list[int] = []
    while len(held) < count:
        live.advance(1)
        held += numbers(worker.exchange(want=count - len(held), seeding=1))
    return held
