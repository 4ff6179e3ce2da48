"""Items survive killed programs, and a Redis that is away, slow, or not there yet."""

from __future__ import annotations

import logging
import queue
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queues.conftest import QUICK, Background, Lines, Make, StartProgram
from scrapy_dq import Queue, ShutDown
from scrapy_dq.backend import connection
from scrapy_dq.queue import FrontierRefused, FrontierUnavailable, member
from support.given import StartProxy
from support.redis_server import RedisServer
from support.waiting import Stopwatch, wait_until

ITEMS, THREADS = 240, 2

PRODUCER = """
import sys
from scrapy_dq import Queue
record, url, crawl, count = sys.argv[1:]
with Queue(crawl, 20, url=url) as q:
    for n in range(int(count)):
        q.put({"number": n})
    q.join()
"""
CONSUMER = """
import os, sys, threading, time
from scrapy_dq import Queue
record, url, crawl = sys.argv[1:]
q = Queue(crawl, url=url)
lines = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def work():
    while True:
        number = q.get()["number"]
        time.sleep(0.005)
        os.write(lines, b"%d %d\\n" % (number, os.getpid()))
        q.task_done()

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_consumer_and_redis_are_killed(
    start_redis: Callable[..., RedisServer], start_program: StartProgram, crawl_name: str, lines: Lines
) -> None:
    """Each item is done; after kill -9, only items that the killed program held are done twice."""
    server = start_redis(appendonly=True)
    consumers = [start_program(CONSUMER, server.url, crawl_name) for _ in range(2)]
    producer = start_program(PRODUCER, server.url, crawl_name, str(ITEMS))
    kills = 0
    for done in (ITEMS // 5, ITEMS // 2):
        wait_until(lambda done=done: len(lines()) >= done, "items are done", 30)  # type: ignore[misc]
        consumers.pop(0).kill()
        kills += 1
        consumers.append(start_program(CONSUMER, server.url, crawl_name))
    wait_until(lambda: len(lines()) >= ITEMS * 3 // 4, "items are done", 30)
    server.restart(kill=True)
    producer.end(60)
    worked = Counter(int(line.split()[0]) for line in lines())
    assert set(worked) == set(range(ITEMS))
    assert worked.total() - ITEMS <= kills * THREADS


def test_items_of_a_killed_producer_stay_in_order(
    make: Make, start_program: StartProgram, redis_server: RedisServer, crawl_name: str
) -> None:
    """All items that the producer had put stay, in order and without a gap."""
    q = make()
    producer = start_program(PRODUCER, redis_server.url, crawl_name, "1000000")
    wait_until(lambda: q.qsize() == 20, "the queue is full")
    producer.kill()
    numbers = []
    while True:
        try:
            numbers.append(q.get_nowait()["number"])
        except queue.Empty:
            break
        q.task_done()
    assert numbers == list(range(20))


def test_lost_replies_double_no_item(make: Make, start_proxy: StartProxy, redis_server: RedisServer) -> None:
    """Redis applies each command, but one answer in five is lost. Each item still comes only once."""
    proxy = start_proxy(redis_server.url)
    q = make(url=proxy.url, settings={"DQ_ROLLBACK_HORIZON": 1})
    assert q.qsize() == 0
    proxy.set_loss(0.2, seed=5)
    q.put_all(range(20))
    for n in range(20, 30):
        q.put(n)
    got = []
    for _ in range(30):
        got.append(q.get())
        q.task_done()
    q.join()
    proxy.set_loss(0.0)
    assert got == list(range(30))
    with pytest.raises(queue.Empty):
        q.get_nowait()
    q.close()


def test_calls_wait_while_redis_is_unavailable(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls wait; after a time-out, the error says whether the item may be stored. One warning is logged."""
    proxy = start_proxy(redis_server.url)
    q = make(url=proxy.url, settings=QUICK)
    q.put("before")
    caplog.set_level(logging.INFO)
    proxy.black_hole()
    with pytest.raises(FrontierUnavailable, match="may be stored"):
        q.put("sent", timeout=0.1)
    with pytest.raises(FrontierUnavailable, match="was not stored"):
        q.put("not sent", timeout=0.1)
    for call in (q.get_nowait, lambda: q.get(timeout=0.1), q.qsize, lambda: q.put_nowait("not sent")):
        began = Stopwatch()
        with pytest.raises(FrontierUnavailable):
            call()
        assert began.seconds < 3
    waiting = Background(lambda: q.put("waits"))
    assert waiting.blocked
    proxy.pass_through()
    waiting.wait()
    assert [q.get(timeout=60) for _ in range(3)] == ["before", "sent", "waits"]
    assert q.qsize() == 0
    assert sum("Redis does not answer" in text for text in caplog.messages) == 1
    assert sum("Redis is back" in text for text in caplog.messages) == 1
    q.close()


def test_close_ends_within_its_grace_while_redis_is_unavailable(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer
) -> None:
    """The close ends within the grace; another process gets the items that are not known to be done."""
    proxy = start_proxy(redis_server.url)
    q = make(url=proxy.url, settings=QUICK)
    q.put_all("ab")
    assert q.get() == "a"
    proxy.black_hole()
    q.task_done()
    began = Stopwatch()
    q.close()
    assert began.seconds < 5
    other = make(settings={"DQ_WORKER_TTL": 1})
    assert sorted(other.get(timeout=120) for _ in range(2)) == ["a", "b"]


def test_calls_that_wait_get_their_own_errors_when_the_queue_closes(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer
) -> None:
    """Each call gets its own error. The error of the put says that its item may be stored."""
    proxy = start_proxy(redis_server.url)
    q = make(url=proxy.url, settings=QUICK)
    q.put("a")
    proxy.black_hole()
    putting, flushing = Background(lambda: q.put("b")), Background(q.flush)
    assert putting.blocked
    assert flushing.blocked
    q.close()
    with pytest.raises(FrontierUnavailable, match="was sent and may be stored"):
        putting.wait()
    with pytest.raises((ShutDown, FrontierUnavailable)):
        flushing.wait()


def test_a_queue_stops_waiting_for_a_lost_answer_as_it_opens(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call raises, and the next call tries again."""
    monkeypatch.setattr(member, "JOIN_PATIENCE_S", 0.0)
    proxy = start_proxy(redis_server.url)
    proxy.cut_next_reply("HGET")
    q = make(url=proxy.url)
    with pytest.raises(FrontierUnavailable):
        q.put("a")
    q.put("b")
    assert q.get() == "b"
    q.close()


@pytest.mark.parametrize(
    ("policy", "rules", "says"),
    [
        ("everysec", ["-info"], "may not ask it (INFO)"),
        ("no", [], "appendfsync is 'no', so that it is unknown"),
    ],
)
def test_a_flush_raises_if_the_items_may_not_be_on_disk(
    start_redis: Callable[..., RedisServer], crawl_name: str, policy: str, rules: list[str], says: str
) -> None:
    """The item is stored, but the queue cannot know whether it is on disk."""
    server = start_redis(appendonly=True, args=["--appendfsync", policy])
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "dq", "on", ">pw", "~*", "&*", "+@all", *rules)
    with Queue(crawl_name, url=server.url.replace("redis://", "redis://dq:pw@")) as q:
        q.put("a")
        with pytest.raises(FrontierUnavailable, match=re.escape(says)):
            q.flush()
        assert q.get() == "a"


def test_a_queue_works_as_soon_as_redis_is_there(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call waits some seconds, then raises; the object works as soon as Redis is there."""
    monkeypatch.setattr(connection, "START_PATIENCE_S", 0.1)
    proxy = start_proxy(redis_server.url)
    proxy.refuse()
    q = make(url=proxy.url)
    for call in (q.qsize, lambda: q.put(1), lambda: q.put(1)):
        with pytest.raises(FrontierRefused, match="cannot be reached"):
            call()
    proxy.pass_through()
    q.put(2)
    assert q.get() == 2
    q.close()


@pytest.mark.parametrize("command", ["PING", "INFO", "HGET", "EVALSHA"])
def test_a_queue_opens_although_a_reply_is_lost(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, command: str
) -> None:
    """The first call of a queue waits for Redis, as every other call does."""
    proxy = start_proxy(redis_server.url)
    fault = proxy.cut_next_reply(command)
    q = make(url=proxy.url)
    q.put("a")
    assert fault.fired
    assert q.get() == "a"


def test_an_order_other_than_the_stored_one_is_refused(make: Make) -> None:
    """The error names both orders; without an order, the queue uses the stored one."""
    first = make(order="lifo")
    first.put_all("abc")
    with pytest.raises(FrontierRefused, match=r"'lifo'.*'fifo'"):
        make(order="fifo").get()
    anyhow: Any = make()
    assert [anyhow.get() for _ in range(3)] == ["c", "b", "a"]


def test_a_put_returns_when_a_replica_has_the_item(
    start_redis: Callable[..., RedisServer], crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With DQ_WAIT_REPLICAS and no replica, the put logs that it waits, until a replica has the item."""
    master, replica = start_redis(appendonly=True), start_redis()
    with Queue(crawl_name, url=master.url, settings={"DQ_WAIT_REPLICAS": 1}) as q, replica.client() as client:
        putting = Background(lambda: q.put("item"))
        wait_until(lambda: "0 of 1 replicas (DQ_WAIT_REPLICAS)" in caplog.text, "the log names the replica")
        assert putting.blocked
        client.replicaof("127.0.0.1", str(master.port))
        putting.wait(30)
        assert q.get(timeout=30) == "item"
        q.task_done()
