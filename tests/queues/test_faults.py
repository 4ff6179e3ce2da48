"""What becomes of items when programs are killed, and when Redis is away, slow, or not there yet."""

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


def test_a_consumer_is_killed_and_redis_too(
    start_redis: Callable[..., RedisServer], start_program: StartProgram, crawl_name: str, lines: Lines
) -> None:
    """Each item is worked off; after kill -9 again only what the killed one had in its hands."""
    server = start_redis(appendonly=True)
    consumers = [start_program(CONSUMER, server.url, crawl_name) for _ in range(2)]
    producer = start_program(PRODUCER, server.url, crawl_name, str(ITEMS))
    kills = 0
    for done in (ITEMS // 5, ITEMS // 2):
        wait_until(lambda done=done: len(lines()) >= done, "items are worked off", 30)  # type: ignore[misc]
        consumers.pop(0).kill()
        kills += 1
        consumers.append(start_program(CONSUMER, server.url, crawl_name))
    wait_until(lambda: len(lines()) >= ITEMS * 3 // 4, "items are worked off", 30)
    server.restart(kill=True)
    producer.end(60)
    worked = Counter(int(line.split()[0]) for line in lines())
    assert set(worked) == set(range(ITEMS))
    assert worked.total() - ITEMS <= kills * THREADS


def test_a_producer_is_killed(
    make: Make, start_program: StartProgram, redis_server: RedisServer, crawl_name: str
) -> None:
    """What it had put stays, in order and without a gap."""
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


def test_lost_replies(make: Make, start_proxy: StartProxy, redis_server: RedisServer) -> None:
    """One answer in five is lost, after Redis has done what was asked: each item comes once nevertheless."""
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


def test_while_redis_is_unavailable(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls wait; with a time-out they say whether the item may be stored. A warning comes once."""
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


def test_closing_while_redis_is_unavailable(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer
) -> None:
    """It ends within its grace; what it could not hand in comes again, from another one."""
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


def test_closing_while_a_put_and_a_flush_wait(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer
) -> None:
    """Each is told in its own way: the put may have come through."""
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


def test_a_redis_that_loses_an_answer_as_a_queue_opens_is_not_waited_for_for_ever(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call tries again."""
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
def test_a_flush_that_cannot_be_certain_says_so(
    start_redis: Callable[..., RedisServer], crawl_name: str, policy: str, rules: list[str], says: str
) -> None:
    """What was put is stored all the same."""
    server = start_redis(appendonly=True, args=["--appendfsync", policy])
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "dq", "on", ">pw", "~*", "&*", "+@all", *rules)
    with Queue(crawl_name, url=server.url.replace("redis://", "redis://dq:pw@")) as q:
        q.put("a")
        with pytest.raises(FrontierUnavailable, match=re.escape(says)):
            q.flush()
        assert q.get() == "a"


def test_a_redis_that_is_not_there_yet(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call waits some seconds for it, then says so; the object can be used once it is there."""
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
def test_a_reply_that_is_lost_as_a_queue_opens(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, command: str
) -> None:
    """Its first call waits, as every other one does."""
    proxy = start_proxy(redis_server.url)
    fault = proxy.cut_next_reply(command)
    q = make(url=proxy.url)
    q.put("a")
    assert fault.fired
    assert q.get() == "a"


def test_another_order_than_the_stored_one(make: Make) -> None:
    """It is refused with both names; without an order, whichever is stored is served."""
    first = make(order="lifo")
    first.put_all("abc")
    with pytest.raises(FrontierRefused, match=r"'lifo'.*'fifo'"):
        make(order="fifo").get()
    anyhow: Any = make()
    assert [anyhow.get() for _ in range(3)] == ["c", "b", "a"]


def test_a_put_returns_when_a_replica_has_the_item(
    start_redis: Callable[..., RedisServer], crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DQ_WAIT_REPLICAS: with no replica it waits, and says so; and goes on with the first one."""
    master, replica = start_redis(appendonly=True), start_redis()
    with Queue(crawl_name, url=master.url, settings={"DQ_WAIT_REPLICAS": 1}) as q, replica.client() as client:
        putting = Background(lambda: q.put("item"))
        wait_until(lambda: "0 of 1 replicas (DQ_WAIT_REPLICAS)" in caplog.text, "it says what it waits for")
        assert putting.blocked
        client.replicaof("127.0.0.1", str(master.port))
        putting.wait(30)
        assert q.get(timeout=30) == "item"
        q.task_done()
