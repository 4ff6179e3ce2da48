"""One queue in several processes: forked, spawned, and programs that end without close()."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis

from queues.conftest import Background, Program, join_crawl
from scrapy_dq import Queue, ShutDown
from scrapy_dq.frontier import keys, peek
from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES
from scrapy_dq.queue.member import Member
from support.proxy import RedisProxy
from support.queue_work import double_until_none
from support.redis_server import RedisServer
from support.waiting import wait_until

Make = Callable[..., Queue]
StartProgram = Callable[..., Program]
StartProxy = Callable[[str], RedisProxy]
Lines = Callable[[], list[str]]


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_works_at_the_same_queue(
    make: Make, redis_server: RedisServer, crawl_name: str, client: redis.Redis, method: str
) -> None:
    """Forked or spawned, a child is another worker, and does not close the queue of its parent."""
    q = make()
    with Queue(f"{crawl_name}-results", url=redis_server.url) as results:
        q.put("used before the fork")
        assert q.get() == "used before the fork"
        context = multiprocessing.get_context(method)
        child = context.Process(target=double_until_none, args=(q, results))
        child.start()
        for n in (1, 2, 3, None):
            q.put(n)
        got = [results.get(timeout=120) for _ in range(3)]
        child.join(20)
        assert child.exitcode == 0
        assert sorted(got) == [(2, child.pid), (4, child.pid), (6, child.pid)]
        q.task_done()
        q.join()
        assert peek(client, crawl_name).census.in_flight == 0
        assert len(peek(client, crawl_name).members) == 1  # the child has left
        q.put("used after the fork")
        assert q.get() == "used after the fork"


def test_a_get_takes_no_items_in_advance(make: Make, crawl_name: str, client: redis.Redis) -> None:
    """A get takes one item, because an item kept in one process would delay a process that waits."""
    first, second = make(), make()
    first.put_all(range(10))
    assert [first.get(), second.get(), first.get(), second.get()] == [0, 1, 2, 3]
    assert peek(client, crawl_name).census.in_flight == 4
    assert first.qsize() == second.qsize() == 6


def test_each_thread_gets_an_item_while_items_wait(make: Make) -> None:
    """An exchange may bring a process fewer leases than its threads need, so the process asks again."""
    q, other = make(), make()
    join_crawl(other)
    for _ in range(5):
        q.put_all(range(6))
        getting = [Background(q.get_nowait) for _ in range(6)]
        assert sorted(get.wait() for get in getting) == list(range(6))


def test_task_done_settles_an_item_of_its_own_thread_first(make: Make) -> None:
    """task_done settles the oldest item of its thread, or else the oldest item of any thread."""
    q = make()
    q.put_all("abcd")
    assert q.get() == "a"
    assert Background(lambda: (q.get(), q.task_done())).wait()[0] == "b"
    assert Background(q.get).wait() == "c"
    assert q.get() == "d"
    q.task_done()
    q.task_done()
    q.close()
    q = make()
    assert q.get() == "c"
    Background(q.task_done).wait()
    with pytest.raises(ValueError, match="task_done"):
        q.task_done()
    q.join()


@pytest.mark.parametrize("call", ["qsize", "join", "get_nowait"])
def test_a_call_is_not_answered_by_an_older_exchange(
    make: Make,
    start_proxy: StartProxy,
    redis_server: RedisServer,
    client: redis.Redis,
    crawl_name: str,
    call: str,
) -> None:
    """An item is put while the answer to an exchange is on its way. A later call knows of the item."""
    proxy = start_proxy(redis_server.url)
    q, other = make(url=proxy.url, settings={"REDIS_PARAMS": {"socket_timeout": 60}}), make()
    join_crawl(q)
    [worker] = peek(client, crawl_name).members
    join_crawl(other)

    def applied() -> bytes | None:
        return client.hget(keys.prefix(crawl_name) + f"worker:{worker.worker_id}", "last_seq")  # type: ignore[return-value]

    proxy.set_delay(1.0)
    before = applied()
    older = Background(q.qsize)
    wait_until(lambda: applied() != before, "Redis has applied the exchange, and the proxy has its answer")
    other.put("a")
    called = Background(getattr(q, call))
    if call == "join":
        assert other.get() == "a"
        older.wait()
        assert called.blocked
        other.task_done()
    assert called.wait() == {"qsize": 1, "join": None, "get_nowait": "a"}[call]
    assert older.wait() == 0
    proxy.set_delay(0.0)
    q.close()


@pytest.mark.parametrize("call", ["get", "put", "join"])
def test_a_call_that_waits_makes_few_exchanges(
    make: Make, start_proxy: StartProxy, redis_server: RedisServer, call: str
) -> None:
    """A call that waits for other processes asks less and less often, down to twice a second."""
    proxy = start_proxy(redis_server.url)
    q, other = make(1, url=proxy.url), make()
    join_crawl(q)
    if call != "get":
        other.put("a")
    waiting = Background({"get": q.get, "put": lambda: q.put("b"), "join": q.join}[call])
    before, end = proxy.script_calls, time.monotonic() + 0.7
    wait_until(lambda: time.monotonic() > end, "some time has passed")
    assert proxy.script_calls - before < 12  # heartbeats included
    other.put("c") if call == "get" else other.get()
    other.task_done() if call == "join" else None
    waiting.wait()
    q.close()


@pytest.mark.parametrize(
    ("item", "at_once"), [(0, MAX_MOVES), ("x" * 1_000_000, MAX_EXCHANGE_BYTES // 1_000_000)]
)
def test_put_all_stores_a_part_before_it_takes_more_items(make: Make, item: Any, at_once: int) -> None:
    """A part ends at the limit of its number of items, or at the limit of its size."""
    q = make(durable=False)

    def items() -> Iterator[Any]:
        for _ in range(at_once + 1):
            yield item
        assert make().qsize() == at_once
        yield item

    q.put_all(items())
    assert q.qsize() == at_once + 2


def test_items_that_found_no_room_are_put_later(make: Make) -> None:
    """Another process filled the queue first. The items are put when there is room, in their order."""
    q, other = make(5), make()
    join_crawl(q)
    other.put_all(range(5))
    putting = Background(lambda: q.put_all("abc"))
    assert [other.get(timeout=120) for _ in range(8)] == [*range(5), *"abc"]
    putting.wait()


def test_close_returns_the_items_that_are_not_done(make: Make, crawl_name: str, client: redis.Redis) -> None:
    """Such items go back to their places. Later calls raise ShutDown, and a second close does nothing."""
    with make() as q:
        q.put_all("abc")
        assert q.get() == "a"
        assert q.get() == "b"
        q.task_done()
    assert (peek(client, crawl_name).census.waiting, peek(client, crawl_name).members) == (2, [])
    q.close()
    for call in (q.get, q.qsize, q.join, q.task_done, lambda: q.put(1)):
        with pytest.raises(ShutDown):
            call()
    other = make()
    assert [other.get(), other.get()] == ["b", "c"]


def test_a_queue_that_is_garbage_collected_leaves(
    make: Make, redis_server: RedisServer, crawl_name: str
) -> None:
    """A queue object that no code can reach any more must not hold items that other processes could take."""
    q: Queue | None = Queue(crawl_name, url=redis_server.url)
    assert q is not None
    q.put("a")
    assert q.get() == "a"
    other = make()
    assert other.qsize() == 0
    del q
    gc.collect()
    assert other.get(timeout=120) == "a"


WITHOUT_A_WORD = """
import sys, threading
from scrapy_dq import Queue
record, url, crawl = sys.argv[1:]
q = Queue(crawl, url=url)
q.put_all(range(20))

def work():
    for _ in range(5):
        print(q.get(), file=open(record, "a"))
        q.task_done()

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
work()
"""


def test_a_program_that_ends_without_close_settles_its_finished_items(
    start_program: StartProgram, redis_server: RedisServer, crawl_name: str, make: Make, lines: Lines,
    client: redis.Redis,
) -> None:  # fmt: skip
    """The main thread ends first, without close(). All threads finish their work, and the worker leaves."""
    start_program(WITHOUT_A_WORD, redis_server.url, crawl_name).end()
    assert sorted(map(int, lines())) == list(range(15))
    overview = peek(client, crawl_name)
    assert (overview.members, overview.census.waiting, overview.census.done) == ([], 5, 15)
    assert client.exists(f"dq:{{{crawl_name}}}:admitted") == 0  # no worker will repeat these puts
    assert make().get() == 15


EMBEDDED = """
import sys
from scrapy_dq import Queue
q = Queue("books")
q.put(("a", 1))
print(q.get(), file=open(sys.argv[1], "a"))
q.task_done()
"""


def test_without_a_url_the_embedded_redis_serves(
    start_program: StartProgram, tmp_path: Path, lines: Lines
) -> None:
    """In a project's folder, the queue uses the project's embedded Redis, which stops with its last user."""
    (tmp_path / "scrapy.cfg").touch()
    output = start_program(EMBEDDED, cwd=tmp_path).end()
    assert lines() == ["('a', 1)"]
    assert "Traceback" not in output
    folder = tmp_path / ".scrapy" / "dq"
    assert folder.is_dir()
    assert not (folder / "redis.sock").exists()


INTERRUPTED = """
import sys
from scrapy_dq import Queue
record, url, crawl, call = sys.argv[1:]
with Queue(crawl, 1, url=url) as q:
    if call == "put":
        q.put("a")
    try:
        print("waits", file=open(record, "a"))
        q.put("b") if call == "put" else q.get()
    except KeyboardInterrupt:
        print("interrupted", file=open(record, "a"))
    q.get(), q.task_done()
    q.put("c")
"""


@pytest.mark.parametrize("call", ["get", "put"])
def test_an_interrupt_ends_a_call_that_waits(
    start_program: StartProgram, redis_server: RedisServer, crawl_name: str, make: Make, lines: Lines,
    call: str,
) -> None:  # fmt: skip
    """An interrupted get() leaves the item for the next get(). An interrupted put() stores nothing."""
    program = start_program(INTERRUPTED, redis_server.url, crawl_name, call)
    wait_until(lambda: lines() == ["waits"], "the program waits")
    program.send(signal.SIGINT)
    wait_until(lambda: "interrupted" in lines(), "the program was interrupted")
    q = make()
    if call == "get":
        q.put("a")
    program.end()
    assert q.get() == "c"
    assert q.empty()


def test_nothing_connects_before_the_first_call(make: Make, start_program: StartProgram) -> None:
    """Making a Queue starts no thread, even if its Redis is unavailable.

    A wrong setting raises an error immediately.
    """
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []
    q = make(url="redis://127.0.0.1:1/0")
    assert repr(q).startswith("<Queue 'crawl-")
    assert threads == (os.listdir("/proc/self/task") if threads else [])
    with pytest.raises(ValueError, match="DQ_ORDR"):
        make(settings={"DQ_ORDR": "fifo"})
    with pytest.raises(ValueError, match="DQ_ORDER"):
        make(order="lifoo")


def test_qsize_empty_and_full_begin_no_crawl(make: Make, crawl_name: str, client: redis.Redis) -> None:
    """qsize(), empty() and full() join no crawl, because in a finished crawl a join begins the next run."""
    q = make()
    assert (q.qsize(), q.empty(), q.full()) == (0, True, False)
    assert peek(client, crawl_name).phase == "absent"
    q.put(1)
    assert q.qsize() == 1
    assert peek(client, crawl_name).phase == "open"


def test_a_queue_that_is_closed_during_its_first_call_does_not_join(
    make: Make, crawl_name: str, client: redis.Redis
) -> None:
    """Otherwise its worker would stay registered, and no run would finish."""
    q = make()
    lock, user = q._starting, threading.current_thread()

    class Switch:
        """A lock that first lets another thread close the queue."""

        def __enter__(self) -> Any:
            if threading.current_thread() is user:
                closer = threading.Thread(target=q.close)
                closer.start()
                closer.join(10)
            return lock.__enter__()

        def __exit__(self, *error: Any) -> Any:
            return lock.__exit__(*error)

    q._starting = Switch()  # type: ignore[assignment]
    with pytest.raises(ShutDown):
        q.put(1)
    assert peek(client, crawl_name).members == []


@pytest.mark.parametrize(("call", "immediate"), [("get", False), ("get", True), ("join", True)])
@pytest.mark.parametrize("by_another", [False, True])
def test_shutdown_ends_a_first_call_that_joins(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    call: str, immediate: bool, by_another: bool,
) -> None:  # fmt: skip
    """Another thread, or a signal handler in the joining thread, shuts the queue down.

    The other thread has to wait until the member has started. The signal handler finds no member yet.
    """
    start = Member.start
    others: list[Background] = []

    def shut_and_start(member: Member) -> None:
        if by_another:
            others.append(Background(lambda: q.shutdown(immediate)))
            assert others[0].blocked
        else:
            q.shutdown(immediate)
        start(member)

    if immediate:
        make().put("nobody gets it")
    monkeypatch.setattr(Member, "start", shut_and_start)
    q = make()
    with nullcontext() if call == "join" else pytest.raises(ShutDown):
        Background(getattr(q, call)).wait()
    for other in others:
        other.wait()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_signal_handler_can_close_a_queue_that_joins(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises ShutDown, and the member that the call has started ends."""
    start = Member.start

    def close_and_start(member: Member) -> None:
        q.close()
        start(member)

    monkeypatch.setattr(Member, "start", close_and_start)
    q = make()
    with pytest.raises(ShutDown):
        Background(q.get).wait()
    wait_until(lambda: "scrapy-dq-queue" not in {t.name for t in threading.enumerate()}, "the thread ends")
