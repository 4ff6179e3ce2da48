"""What becomes of items when programs are killed, and Redis is away, slow, older or gone."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queues.conftest import Background, Program, join_crawl
from scrapy_dq import Queue, ShutDown
from scrapy_dq.backend import connection
from scrapy_dq.frontier.model import Order
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.spill import SpillLost
from scrapy_dq.queue import FrontierLost, FrontierRefused, FrontierUnavailable, member
from support.live_frontier import HandWorker, LiveFrontier
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.waiting import Stopwatch, wait_until

Make = Callable[..., Queue]
StartProgram = Callable[..., Program]
StartProxy = Callable[[str], RedisProxy]
Lines = Callable[[], list[str]]
QUICK = {"REDIS_PARAMS": {"socket_timeout": 0.2}, "DQ_SHUTDOWN_GRACE": 0.5}
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


def finish_without(live: LiveFrontier, own: str) -> None:
    """Have another worker declare *own* dead, and finish the run."""
    other = HandWorker(live, "other")
    other.reclaim(own)
    assert other.exchange().status.value == "FINISHED"
    other.leave()


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


def test_a_redis_that_was_rolled_back(start_redis: Callable[..., RedisServer], crawl_name: str) -> None:
    """What put() had confirmed within DQ_ROLLBACK_HORIZON is stored again by itself, also past maxsize."""
    server = start_redis(appendonly=True)
    with Queue(crawl_name, 3, url=server.url) as q, Queue(crawl_name, url=server.url) as other:
        q.put("a")
        snapshot = server.snapshot()
        q.put("b")
        q.put("c")
        server.roll_back(snapshot)
        wait_until(lambda: other.qsize() == 3, "all are there again")
        assert [other.get() for _ in range(3)] == ["a", "b", "c"]


def test_a_redis_that_was_rolled_back_beyond_the_horizon(
    make: Make, start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Items are gone for good: the log says what to do about it, and so does the next flush()."""
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
    assert "has to put its items again" in told.getMessage()
    q.close()


@pytest.mark.parametrize("horizon_s", [1, 300])
def test_join_waits_for_what_others_store_again(
    horizon_s: int, make: Make, start_redis: Callable[..., RedisServer], start_proxy: StartProxy
) -> None:
    """Redis comes back without it, and it is not there yet when the one that joins looks."""
    server = start_redis(appendonly=True)
    proxy = start_proxy(server.url)
    # A late answer would be an outage, after which it waits for others for the length of a horizon.
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

    wait_until(is_back, "it is back, and nothing is there", 30)
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


def test_a_redis_that_was_emptied(start_redis: Callable[..., RedisServer], crawl_name: str) -> None:
    """Every call says that the frontier is gone; nothing is put into what took its place."""
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
def test_a_redis_that_was_emptied_while_a_call_waits(
    start_redis: Callable[..., RedisServer], crawl_name: str, call: str
) -> None:
    """A put for room, which there will never be; a flush ends, however long it may wait."""
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


SLEEPER = """
import sys
from scrapy_dq import Queue
record, url, crawl = sys.argv[1:]
q = Queue(crawl, url=url)
q.put("first")
lines = open(record, "a", buffering=1)
while (item := q.get()) != "end":
    q.task_done()
    print(item, file=lines)
q.task_done()
q.put("last")
"""


def test_a_process_that_was_suspended_at_the_end_of_the_run(
    make: Make, start_program: StartProgram, redis_server: RedisServer, crawl_name: str, lines: Lines
) -> None:
    """It was declared dead, and the others finished the run: it continues in the next one."""
    program = start_program(SLEEPER, redis_server.url, crawl_name)
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    # It may be stopped before it has reported that the first one is done: that one would come back.
    wait_until(lambda: live.call("census").done == 1, "the program waits for an item")
    assert lines() == ["first"]
    program.send(signal.SIGSTOP)
    finish_without(live, *live.members())
    q = make()
    q.put("second")
    os.kill(program.pid, signal.SIGCONT)
    wait_until(lambda: lines() == ["first", "second"], "the program goes on")
    q.put("end")
    program.end()
    assert q.get() == "last"
    live.close()


def test_a_put_that_the_run_has_not_taken_goes_into_the_next_one(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, crawl_name: str
) -> None:
    """While put() waits for Redis its process is declared dead, the run ends, and another one begins."""
    proxy = start_proxy(redis_server.url)
    q = make(url=proxy.url, settings=QUICK)
    join_crawl(q)
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    (own,) = live.members()
    proxy.black_hole()
    putting = Background(lambda: q.put_all(range(3)))
    assert putting.blocked
    finish_without(live, own)
    following = make()
    join_crawl(following)
    proxy.pass_through()
    putting.wait(20)
    assert [following.get() for _ in range(3)] == [0, 1, 2]
    q.close()
    live.close()


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


def test_a_put_whose_outbox_is_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waited on disk cannot be read back: a put that was not confirmed is made once more."""
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


def test_a_process_that_was_declared_dead(make: Make, redis_server: RedisServer, crawl_name: str) -> None:
    """What it had in its hands is somebody else's; its task_done changes nothing, and it goes on."""
    q = make()
    q.put_all(["a", "b"])
    assert q.get() == "a"
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    other = HandWorker(live, "other")
    (own,) = live.members() - {"other"}
    other.reclaim(own)
    while len(other.held) < 2:
        other.exchange(want=2)
    q.task_done()
    q.put("c")
    assert q.get(timeout=60) == "c"
    census = other.exchange().census
    assert (census.in_flight, census.done) == (3, 0)
    other.leave()
    live.close()


def test_another_order_than_the_stored_one(make: Make) -> None:
    """It is refused with both names; without an order, whichever is stored is served."""
    first = make(order="lifo")
    first.put_all("abc")
    with pytest.raises(FrontierRefused, match=r"'lifo'.*'fifo'"):
        make(order="fifo").get()
    anyhow: Any = make()
    assert [anyhow.get() for _ in range(3)] == ["c", "b", "a"]


@pytest.mark.parametrize("ends", ["flush", "close"])
def test_a_process_that_redis_forgot_while_it_was_away(
    make: Make,
    start_redis: Callable[..., RedisServer],
    start_proxy: StartProxy,
    crawl_name: str,
    ends: str,
) -> None:
    """Redis was rolled back beyond its puts, and others finished the run: the items are in the next one."""
    server = start_redis(appendonly=True)
    live = LiveFrontier(server.url, crawl_name, Order.FIFO)
    other = HandWorker(live, "other")
    before = live.dump()
    proxy = start_proxy(server.url)
    q = make(url=proxy.url, settings={"DQ_SHUTDOWN_GRACE": 20})
    q.put_all(range(3))
    proxy.refuse()
    live.roll_back(before)
    assert other.exchange().status.value == "FINISHED"
    other.leave()
    ending = Background(getattr(q, ends))
    proxy.pass_through()
    ending.wait(60)
    following = make(url=server.url)
    assert [following.get(timeout=60) for _ in range(3)] == [0, 1, 2]
    for each in (q, following):
        each.close()
    live.close()


def test_a_flush_waits_for_all_that_is_stored_again(
    make: Make,
    start_redis: Callable[..., RedisServer],
    start_proxy: StartProxy,
    crawl_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Redis forgot takes many exchanges: its disk is waited for after the last of them."""
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
