"""Python's queue.Queue and our Queue both behave as the documentation of queue.Queue describes."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queues.conftest import Background
from scrapy_dq import ShutDown
from support.waiting import Stopwatch

LikeQueue = Callable[..., Any]


def test_first_in_first_out(like_queue: LikeQueue) -> None:
    """Items come out in the order of their puts, including None and equal items."""
    q = like_queue()
    items = [3, "a", None, 3, {"b": [1.5, b"c"]}, (1, 2)]
    for item in items:
        q.put(item)
    assert [q.get() for _ in items] == items


def test_sizes(like_queue: LikeQueue) -> None:
    """qsize, empty and full count the waiting items, not the items at work."""
    q = like_queue(2)
    assert (q.qsize(), q.empty(), q.full(), q.maxsize) == (0, True, False, 2)
    q.put("a")
    assert (q.qsize(), q.empty(), q.full()) == (1, False, False)
    q.put("b")
    assert (q.qsize(), q.empty(), q.full()) == (2, False, True)
    q.get()
    assert (q.qsize(), q.empty(), q.full()) == (1, False, False)


def test_empty(like_queue: LikeQueue) -> None:
    """If no item waits, get_nowait and get(block=False) raise Empty at once."""
    q = like_queue()
    with pytest.raises(queue.Empty):
        q.get_nowait()
    q.put("a")
    assert q.get_nowait() == "a"
    with pytest.raises(queue.Empty):
        q.get(block=False, timeout=60)


def test_full(like_queue: LikeQueue) -> None:
    """Past maxsize, put_nowait and put(block=False) raise Full at once and add nothing."""
    q = like_queue(maxsize=1)
    q.put_nowait("a")
    with pytest.raises(queue.Full):
        q.put_nowait("b")
    with pytest.raises(queue.Full):
        q.put("c", False)
    assert q.get() == "a"
    q.put_nowait("d")
    assert (q.get(), q.qsize()) == ("d", 0)


def test_a_maxsize_below_1_means_no_limit(like_queue: LikeQueue) -> None:
    """The queue then takes any number of items and is never full."""
    q = like_queue(-1)
    for n in range(5):
        q.put_nowait(n)
    assert (q.qsize(), q.full()) == (5, False)


def test_timeouts(like_queue: LikeQueue) -> None:
    """put and get wait for the given time, then raise Full or Empty; a time below 0 is refused."""
    q = like_queue(1)
    began, clock = time.monotonic(), Stopwatch()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.2)
    with pytest.raises(queue.Empty):
        q.get(True, 0)
    q.put("a")
    with pytest.raises(queue.Full):
        q.put("b", timeout=0.2)
    assert time.monotonic() - began >= 0.4
    assert clock.seconds < 5
    for call in (lambda: q.put("b", timeout=-1), lambda: q.get(timeout=-1)):
        with pytest.raises(ValueError, match="timeout"):
            call()
    assert q.get(timeout=60) == "a"
    q.put("c", timeout=0)
    assert q.get(timeout=0) == "c"


def test_a_put_waits_for_room(like_queue: LikeQueue) -> None:
    """put without a timeout returns after another thread has got an item; the order stays."""
    q = like_queue(1)
    q.put("a")
    putting = Background(lambda: q.put("b"))
    assert putting.blocked
    assert q.get() == "a"
    putting.wait()
    assert q.get() == "b"


def test_task_done_without_an_item_raises(like_queue: LikeQueue) -> None:
    """A call of task_done without an item at work raises ValueError."""
    q = like_queue()
    q.put("a")
    q.get()
    q.task_done()
    with pytest.raises(ValueError, match="task_done"):
        q.task_done()


def test_join(like_queue: LikeQueue) -> None:
    """join returns after one task_done for each item, not when the queue is empty."""
    q = like_queue()
    q.join()
    q.put("a")
    q.put("b")
    joining = Background(q.join)
    q.get()
    q.get()
    assert q.empty()
    assert joining.blocked
    q.task_done()
    assert joining.blocked
    q.task_done()
    joining.wait()


def test_the_example_of_the_documentation(like_queue: LikeQueue) -> None:
    """Threads process the items of another thread, and join() waits for them; each item comes once."""
    q = like_queue()
    worked: Counter[int] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while True:
            item = q.get()
            with lock:
                worked[item] += 1
            q.task_done()

    for _ in range(3):
        Background(work)
    for item in range(60):
        q.put(item)
    q.join()
    assert worked == dict.fromkeys(range(60), 1)


def shut(q: Any) -> None:
    if not hasattr(q, "shutdown"):
        pytest.skip("queue.Queue has no shutdown before Python 3.13")


def test_shutdown(like_queue: LikeQueue) -> None:
    """After shutdown(), put raises ShutDown, and so does get when no item waits."""
    q = like_queue()
    shut(q)
    q.put("a")
    q.put("b")
    q.shutdown()
    with pytest.raises(ShutDown):
        q.put("c")
    assert q.get() == "a"
    assert q.get_nowait() == "b"
    for get in (q.get, q.get_nowait):
        with pytest.raises(ShutDown):
            get()
    q.task_done()
    q.task_done()
    q.join()


def test_shutdown_releases_blocked_calls(like_queue: LikeQueue) -> None:
    """Calls that wait for an item, or for room, raise ShutDown when the queue is shut down."""
    q = like_queue(1)
    shut(q)
    getting = Background(q.get)
    assert getting.blocked
    q.shutdown()
    with pytest.raises(ShutDown):
        getting.wait()
    q = like_queue(1)
    q.put("a")
    putting = Background(lambda: q.put("b"))
    assert putting.blocked
    q.shutdown()
    with pytest.raises(ShutDown):
        putting.wait()
    assert q.get() == "a"


def test_immediate_shutdown(like_queue: LikeQueue) -> None:
    """With immediate=True, get hands out nothing more, and join does not wait any longer."""
    q = like_queue()
    shut(q)
    q.put("a")
    q.put("b")
    q.get()
    joining = Background(q.join)
    assert joining.blocked
    q.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        q.get()
    q.task_done()
    joining.wait()
