"""After a roll-back of Redis, a Queue stores items again; after a FLUSHALL, its calls raise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from queues.conftest import Background, Make, join_crawl
from scrapy_dq import Queue
from scrapy_dq.frontier.model import Order
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.spill import SpillLost
from scrapy_dq.queue import FrontierLost, FrontierUnavailable
from support.given import StartProxy
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import RedisServer
from support.waiting import wait_until


def test_items_that_a_roll_back_lost_are_stored_again(
    start_redis: Callable[..., RedisServer], crawl_name: str
) -> None:
    """Items that put() had confirmed within DQ_ROLLBACK_HORIZON are stored again, even past maxsize."""
    server = start_redis(appendonly=True)
    with Queue(crawl_name, 3, url=server.url) as q, Queue(crawl_name, url=server.url) as other:
        q.put("a")
        snapshot = server.snapshot()
        q.put("b")
        q.put("c")
        server.roll_back(snapshot)
        wait_until(lambda: other.qsize() == 3, "all items are stored again")
        assert [other.get() for _ in range(3)] == ["a", "b", "c"]


def test_items_lost_in_a_roll_back_beyond_the_horizon_are_reported(
    make: Make, start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Some items are lost. The log and the next flush() name the remedy."""
    server = start_redis(appendonly=True)
    q = make(url=server.url, settings={"DQ_ROLLBACK_HORIZON": 1})
    q.put("kept")
    snapshot = server.snapshot()
    for item in range(3):
        q.put(item)
        time.sleep(1.5)
    server.roll_back(snapshot)
    q.put("after")
    with pytest.raises(FrontierUnavailable, match="have to be put again"):
        q.flush(60)
    q.flush(60)
    (told,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "puts its items again" in told.getMessage()
    q.close()


@pytest.mark.parametrize("horizon_s", [1, 300])
def test_join_waits_for_items_that_other_processes_store_again(
    horizon_s: int, make: Make, start_redis: Callable[..., RedisServer], start_proxy: StartProxy
) -> None:
    """Redis comes back without the items. When the joining process asks, the items are not stored yet."""
    server = start_redis(appendonly=True)
    proxy = start_proxy(server.url)
    # A late answer would count as an outage. Then the process would wait one horizon for other processes.
    patient = {"REDIS_PARAMS": {"socket_timeout": 60}}
    joining = make(url=server.url, settings={"DQ_ROLLBACK_HORIZON": horizon_s} | patient)
    producer, consumer = make(url=proxy.url), make(url=server.url)
    for q in (joining, producer):
        q.put("a")
        consumer.get()
        consumer.task_done()
    joining.join()
    snapshot = server.snapshot()
    producer.put_all(range(5))
    waiting = Background(joining.join)
    assert waiting.blocked
    proxy.refuse()
    server.roll_back(snapshot)

    def is_back() -> bool:
        try:
            return joining.qsize() == 0
        except FrontierUnavailable:
            return False

    wait_until(is_back, "Redis is back, without the items", 30)
    if horizon_s > 1:
        assert waiting.blocked
    proxy.pass_through()
    assert sorted(consumer.get(timeout=60) for _ in range(5)) == list(range(5))
    for _ in range(5):
        consumer.task_done()
    if horizon_s > 1:
        assert waiting.blocked
        joining.shutdown(immediate=True)
    waiting.wait(60)
    for q in (joining, producer, consumer):
        q.close()


def test_every_call_raises_after_redis_was_emptied(
    start_redis: Callable[..., RedisServer], crawl_name: str
) -> None:
    """Every call raises FrontierLost; no item goes into the new frontier."""
    server = start_redis(appendonly=True)
    q = Queue(crawl_name, url=server.url)
    q.put("a")
    getting = Background(lambda: (q.get(), q.get()))
    with server.client() as client:
        client.flushall()
    with pytest.raises(FrontierLost, match="A new Queue object"):
        getting.wait()
    for call in (q.get, q.get_nowait, lambda: q.put(1), q.qsize, q.join):
        with pytest.raises(FrontierLost):
            call()
    q.close()
    with Queue(crawl_name, url=server.url) as fresh:
        assert fresh.qsize() == 0
        fresh.put("b")
        assert fresh.get() == "b"


@pytest.mark.parametrize("call", ["put", "flush"])
def test_a_waiting_call_raises_when_redis_is_emptied(
    start_redis: Callable[..., RedisServer], crawl_name: str, call: str
) -> None:
    """The put would wait for room that never comes. A flush also ends, although it has no time-out."""
    server = start_redis(appendonly=True)
    q = Queue(crawl_name, 1, url=server.url)
    q.put("a")
    waiting = Background({"put": lambda: q.put("b"), "flush": q.flush}[call])
    assert call == "flush" or waiting.blocked
    with server.client() as client:
        client.flushall()
    with pytest.raises(FrontierLost):
        waiting.wait()
    q.close()


def test_a_put_whose_outbox_is_lost_is_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves on disk cannot be read back, so the worker repeats the unconfirmed put."""
    q = make()
    join_crawl(q)
    prefix, lost = Outbox.prefix, []

    def lose_once(outbox: Outbox, until: int | None = None) -> list[Any]:
        if outbox.puts and not lost:
            lost.append(outbox.puts)
            raise SpillLost("the disk is gone")
        return prefix(outbox)

    monkeypatch.setattr(Outbox, "prefix", lose_once)
    q.put("a")
    assert lost == [1]
    assert make().get() == "a"


def test_a_flush_waits_for_items_that_are_stored_again(
    make: Make,
    start_redis: Callable[..., RedisServer],
    start_proxy: StartProxy,
    crawl_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storing the lost items takes many exchanges, and the flush waits for the disk after the last one."""
    server = start_redis(appendonly=True, args=["--appendfsync", "always"])
    live = LiveFrontier(server.url, crawl_name, Order.FIFO)
    other = HandWorker(live, "other")
    before = live.dump()
    proxy = start_proxy(server.url)
    q = make(url=proxy.url)
    q.put_all(range(60))
    monkeypatch.setattr("scrapy_dq.frontier.worker.outbox.MAX_MOVES", 2)
    proxy.set_delay(0.02)
    live.roll_back(before)
    q.flush(60)
    assert other.exchange().census.waiting == 60
    q.close()
    live.close()
