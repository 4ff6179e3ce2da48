"""If keys were deleted or evicted, an exchange notices it. An audit rebuilds the keys or records the loss."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.model import Identity, Status
from scrapy_dq.frontier.worker.audit import audit
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, entry_id, limited, numbers, puts


@pytest.mark.parametrize("crawl", [IDENTITY, limited(concurrency=50)])
@pytest.mark.parametrize("lists", ["missing", "without a band", "to be served later"])
def test_partitions_without_entries_do_not_hide_those_behind_them(
    live: LiveFrontier, crawl: Identity, lists: str
) -> None:
    """Each exchange removes many empty partitions, until the entries behind them are served."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(*puts(b"genuine", 3))
    with live.redis.pipeline(transaction=False) as pipeline:
        for n in range(3000):
            if lists == "missing":
                pipeline.hset(live.key("bands"), f"e{n}", BIASED_ZERO)
            if lists == "to be served later":
                pipeline.zadd(live.key("earliest"), {f"e{n}": 9e15})
            pipeline.zadd(live.key("rotation"), {f"e{n}": "-inf"})
        pipeline.execute()
    found: list[int] = []
    for _ in range(12):
        receipt = worker.exchange(want=9)
        found += numbers(receipt)
        if len(found) == 3:
            break
        live.advance(1)
    assert sorted(found) == [0, 1, 2]
    end(live, worker, found)
    assert live.call("census").gone == 0


BIASED_ZERO = (1 << 52).to_bytes(8, "big")
"""Rank 0, as the index `bands` stores it."""


def end(live: LiveFrontier, worker: HandWorker, held: list[int]) -> None:
    """Settle the held entries, audit as a worker does, and check that the run ends."""
    for _ in range(9):
        receipt = worker.exchange(*(ack(n) for n in held), want=9)
        held = numbers(receipt)
        if receipt.status is Status.FINISHED:
            return
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
    pytest.fail(f"the run does not end: {receipt}")


@pytest.mark.parametrize("crawl", [limited(delay_s=0.001), limited(concurrency=2), limited(0.001, 2)])
@pytest.mark.parametrize("saturated", [False, True])
def test_a_resting_partition_without_entries_hides_no_stall(
    live: LiveFrontier, crawl: Identity, saturated: bool
) -> None:
    """One partition is in no index, or waits for a lease that does not exist. Another one seems to rest."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(*puts(b"a", 3))
    live.redis.zadd(live.key("resting"), {b"q": "inf"})
    live.redis.zadd(live.key("earliest"), {b"q": "inf"})
    if saturated:
        live.redis.hset(live.key("unsent"), b"a", b"zzz")
    else:
        live.redis.delete(live.key("rotation"))
    found: list[int] = []
    for _ in range(20):
        live.advance(1)
        receipt = worker.exchange(*(ack(n) for n in found[-1:] if entry_id(n) in worker.held), want=1)
        found += numbers(receipt)
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
            assert live.redis.zscore(live.key("resting"), b"q") is None
        if receipt.status is Status.FINISHED:
            break
    assert (found, receipt.status) == ([0, 1, 2], Status.FINISHED)


def test_lost_leases_are_found_while_a_partition_rests(live: LiveFrontier) -> None:
    """One partition waits for a lease that does not exist. Another one rests because a user blocked it."""
    worker = HandWorker(live, "worker", limited(concurrency=1))
    worker.exchange(*puts(b"a", 2), *puts(b"b", 1, 10))
    live.limit(b"b", block_s=1000.0)
    live.redis.hset(live.key("unsent"), b"a", b"zzz")
    damage = [worker.exchange(want=1).damage for _ in range(2)]
    assert damage[-1] == "entries"
    live.run(audit(live.frontier, worker.epoch, worker.run))
    assert numbers(worker.exchange(want=1)) == [0]
    assert worker.exchange(want=1).damage == ""
