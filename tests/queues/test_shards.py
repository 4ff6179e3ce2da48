"""A Queue over several shards (DQ_SHARDS)."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any

import pytest

from queues.conftest import Background, join_crawl
from scrapy_dq import Queue
from scrapy_dq.frontier.moves import Put
from scrapy_dq.sharding.worker import ShardedWorker
from support.waiting import wait_until

SHARDS = 3
SETTINGS = {"DQ_SHARDS": SHARDS, "DQ_ROLLBACK_HORIZON": 1}


def test_items_of_all_shards_are_handed_out_while_others_are_in_progress(make: Callable[..., Queue]) -> None:
    """Items in work do not lower the number of leases that the callers may get."""
    q = make(settings=SETTINGS, durable=False)
    for item in range(9):
        q.put(item)
    assert sorted(q.get(timeout=30) for _ in range(9)) == list(range(9))
    for _ in range(9):
        q.task_done()
    q.join()
    wait_until(q.empty, "the queue is empty", 30)


def test_maxsize_applies_to_all_shards_together(make: Callable[..., Queue]) -> None:
    """A put waits for room in any shard. A get asks each shard for an item, and returns extra items."""
    q = make(5, settings=SETTINGS, durable=False)
    for item in range(5):
        q.put(item)
    with pytest.raises(queue.Full):
        q.put_nowait(5)
    assert q.full()
    several = Background(lambda: q.put_all(range(5, 40)))
    assert several.blocked
    found = []
    for _ in range(40):
        assert q.qsize() <= 5 + SHARDS - 1
        found.append(q.get(timeout=60))
    several.wait(60)
    assert sorted(found) == list(range(40))


def test_a_bounded_put_counts_items_of_other_producers_in_all_shards(
    make: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put asks all shards for room; a put that waits for room keeps asking all of them."""
    monkeypatch.setattr("scrapy_dq.queue.pace.IDLE_LONGEST_S", 1000.0)
    one, other = (make(5, settings=SETTINGS, durable=False) for _ in range(2))
    join_crawl(other)
    for item in range(5):
        one.put(item)
    wait_until(lambda: other.qsize() == 5, "the other queue sees the items", 30)
    with pytest.raises(queue.Full):
        other.put_nowait(5)
    waiting = Background(lambda: other.put(5))
    assert waiting.blocked
    one.get(timeout=30)
    waiting.wait(60)


def test_qsize_counts_all_shards_before_the_queue_has_joined(make: Callable[..., Queue]) -> None:
    q = make(settings=SETTINGS, durable=False)
    for item in range(9):
        q.put(item)
    q.flush()
    assert make(settings=SETTINGS).qsize() == 9


def test_a_member_that_learns_of_the_end_as_it_leaves_stops_its_worker_once(
    make: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member stores the remaining items in the next run, and then leaves that run."""
    puts, stopped, stopping = list[Put](), list[ShardedWorker](), list[ShardedWorker]()
    stop, put = ShardedWorker.stop, ShardedWorker.put

    async def stop_meanwhile(worker: ShardedWorker, *args: Any, **named: Any) -> None:
        assert not stopping
        stopping.append(worker)
        if not stopped:  # as if a shard reported the end
            worker.parts[0].protocol.leftover_puts = puts
            q._member._start_over()
            await asyncio.sleep(0)
        await stop(worker, *args, **named)
        stopped.append(stopping.pop())

    def note(worker: ShardedWorker, move: Put, *args: Any) -> None:
        if len(puts) < 3:
            puts.append(move)
        put(worker, move, *args)

    monkeypatch.setattr(ShardedWorker, "put", note)
    monkeypatch.setattr(ShardedWorker, "stop", stop_meanwhile)
    q = make(settings=SETTINGS, durable=False)
    for item in range(3):
        q.put(item)
    q.close()
    assert len(stopped) == len({*map(id, stopped)}) == 2
    monkeypatch.undo()
    other = make(settings=SETTINGS)
    assert {other.get(timeout=30) for _ in range(3)} == {0, 1, 2}
