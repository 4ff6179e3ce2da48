"""A process with a Queue was away: suspended, declared dead, forgotten, or late for the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from queues.conftest import QUICK, Background, Lines, Make, StartProgram, join_crawl
from scrapy_dq.frontier.model import Order
from support.given import StartProxy
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import RedisServer
from support.waiting import wait_until


def finish_without(live: LiveFrontier, own: str) -> None:
    """Have another worker declare *own* dead, and finish the run."""
    other = HandWorker(live, "other")
    other.reclaim(own)
    assert other.exchange().status.value == "FINISHED"
    other.leave()


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


def test_a_process_suspended_at_the_end_of_the_run_continues_in_the_next_one(
    make: Make, start_program: StartProgram, redis_server: RedisServer, crawl_name: str, lines: Lines
) -> None:
    """Another worker declared the process dead and finished the run. The process joins the next run."""
    program = start_program(SLEEPER, redis_server.url, crawl_name)
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    # If the program were stopped before it reports the first item as done, it would get that item again.
    wait_until(lambda: live.call("census").done == 1, "the program waits for an item")
    assert lines() == ["first"]
    program.send(signal.SIGSTOP)
    finish_without(live, *live.members())
    q = make()
    q.put("second")
    os.kill(program.pid, signal.SIGCONT)
    wait_until(lambda: lines() == ["first", "second"], "the program continues")
    q.put("end")
    program.end()
    assert q.get() == "last"
    live.close()


def test_a_put_that_missed_its_run_goes_into_the_next_one(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, crawl_name: str
) -> None:
    """While put() waits for Redis, its process is declared dead, the run ends, and the next one begins."""
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


def test_a_process_that_was_declared_dead_continues_without_its_items(
    make: Make, redis_server: RedisServer, crawl_name: str
) -> None:
    """Another worker has the items, so a task_done of the process changes nothing. The process continues."""
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


@pytest.mark.parametrize("ends", ["flush", "close"])
def test_items_of_a_process_that_redis_forgot_go_into_the_next_run(
    make: Make,
    start_redis: Callable[..., RedisServer],
    start_proxy: StartProxy,
    crawl_name: str,
    ends: str,
) -> None:
    """Redis lost the puts in a roll-back, and another worker finished the run. The next run has the items."""
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
