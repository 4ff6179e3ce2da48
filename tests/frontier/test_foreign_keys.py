"""Keys of another type that somebody else has written: they stop nobody, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin.backlog import names_beside, sizes, upcoming
from scrapy_dq.frontier.model import Order, Status
from scrapy_dq.frontier.worker.audit import audit
from support.live_frontier import (
    FOREIGN,
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    limited,
    numbers,
    put,
    puts,
)

NO_HASH = [type_ for type_ in FOREIGN if type_ != "hash"]
LIMITED = limited(concurrency=50)
EVIL = "evil"


def crawl_on(live: LiveFrontier, worker: HandWorker) -> list[int]:
    """Crawl until the run is finished, with an audit whenever an exchange requests one."""
    done = sorted(int(each) for each in worker.held)
    held = list(done)
    for _ in range(20):
        receipt = worker.exchange(*(ack(n) for n in held), want=9)
        held = numbers(receipt)
        done += held
        if receipt.status is Status.FINISHED:
            return done
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
        live.advance(1)
    pytest.fail(f"the run does not end: {receipt}")


WITH_MEMBER: dict[str, Callable[[LiveFrontier, HandWorker], object]] = {
    "an exchange": lambda live, worker: None,
    "a join": lambda live, worker: HandWorker(live, "other").leave(),
    "a rejoin": lambda live, worker: worker.rejoin("again"),
    "a limit": lambda live, worker: live.call("limit", b"a", 0.0, 5),
    "limits of the settings": lambda live, worker: HandWorker(
        live, "other", replace(IDENTITY, limits=LIMITED.limits)
    ).leave(),
    "an audit": lambda live, worker: live.run(
        audit(live.frontier, worker.epoch, worker.run)
    ),
    "an audit that only looks": lambda live, worker: live.run(
        audit(live.frontier, worker.epoch, worker.run, repair=False)
    ),
    "views": lambda live, worker: [
        peek(live.redis, live.crawl), sizes(live.redis, live.crawl, 9), upcoming(live.redis, live.crawl, 9),
        names_beside(live.redis, live.crawl, "b"),
    ],
    "all is saturated": lambda live, worker: (
        live.redis.delete(live.key("rotation")), live.redis.zadd(live.key("saturated"), {"a": 0}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WITH_MEMBER)
@pytest.mark.parametrize("type_", NO_HASH)
@pytest.mark.parametrize("key", ["worker", "in-flight"])
def test_a_member_with_a_key_of_another_type(live: LiveFrontier, key: str, type_: str, what: str) -> None:
    """It counts as a worker without leases, and is fenced and removed as a dead one."""
    worker = HandWorker(live, "worker", LIMITED if what == "all is saturated" else IDENTITY)
    worker.exchange(*puts(b"a", 5), want=1)
    live.redis.sadd(live.key("members"), EVIL)
    FOREIGN[type_](live, f"{key}:{EVIL}")
    WITH_MEMBER[what](live, worker)
    worker.exchange()
    assert worker.fence(EVIL) == "OK"
    assert worker.drain(EVIL)[2] == 0
    assert live.members() == {worker.worker_id}
    assert not {name for name in live.key_names() if EVIL in name}
    live.redis.hdel(live.key("meta"), "starts")  # nobody knows what its start() would have yielded
    assert sorted(crawl_on(live, worker)) == [0, 1, 2, 3, 4]
    assert live.call("census").gone == 0


@pytest.mark.parametrize("key", ["worker", "in-flight"])
def test_a_record_of_no_member_of_another_type(live: LiveFrontier, worker: HandWorker, key: str) -> None:
    """An audit takes it for that of a member that was lost; it is removed like one."""
    worker.exchange(*puts(b"a", 2))
    FOREIGN["string"](live, f"{key}:{EVIL}")
    live.run(audit(live.frontier, worker.epoch, worker.run))
    assert live.members() == {"worker", EVIL}
    worker.reclaim(EVIL)
    assert not {name for name in live.key_names() if EVIL in name}


def test_the_keys_of_a_worker_that_is_alive(live: LiveFrontier, worker: HandWorker) -> None:
    """Other workers go on, and reclaim it when it dies."""
    other = HandWorker(live, "other")
    other.exchange(*puts(b"a", 5), want=2)
    live.redis.delete(live.key("in-flight:other"))
    FOREIGN["string"](live, "in-flight:other")
    assert len(other.held) == 2
    assert worker.take(9) == [2, 3, 4]
    worker.reclaim("other")
    live.redis.hdel(live.key("meta"), "starts")
    crawl_on(live, worker)
    assert live.call("census").gone == len(other.held)


NO_LIST = [type_ for type_ in FOREIGN if type_ != "list"]


@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO, Order.PRIORITY_FIFO, Order.PRIORITY_LIFO])
@pytest.mark.parametrize("type_", NO_LIST)
def test_puts_for_a_list_of_another_type(
    open_frontier: Callable[..., LiveFrontier], type_: str, order: Order
) -> None:
    """They are stored beside it, served in their order, and its key is reported; it stays as it is."""
    live = open_frontier(order)
    worker = HandWorker(live, "worker")
    FOREIGN[type_](live, "backlog:0:a")
    before = live.redis.dump(live.key("backlog:0:a"))
    receipt = worker.exchange(*puts(b"a", 3), *puts(b"b", 2, 3), put(5, 1, partition=b"a"))
    assert "backlog:0:a' is a " in receipt.wrong_key
    assert live.call("census").waiting == 6
    expected = {
        Order.FIFO: [0, 1, 2, 5], Order.LIFO: [5, 2, 1, 0],
        Order.PRIORITY_FIFO: [5, 0, 1, 2], Order.PRIORITY_LIFO: [5, 2, 1, 0],
    }  # fmt: skip
    found = crawl_on(live, worker)
    assert [n for n in found if n not in (3, 4)] == expected[order]
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert live.redis.dump(live.key("backlog:0:a")) == before
    assert live.call("census").gone == 0


@pytest.mark.parametrize(("count", "size"), [(1200, 10), (60, 300_000)])
def test_what_falls_due_for_a_list_of_another_type(
    live: LiveFrontier, worker: HandWorker, count: int, size: int
) -> None:
    """It is stored beside the list, and delays no other."""
    worker.exchange(
        put(count, partition=b"b", due_in=5.0),
        *(put(n, partition=b"a", due_in=1.0, payload=b"x" * size) for n in range(count)),
    )
    FOREIGN["string"](live, "backlog:0:a")
    live.advance(6)
    done: list[int] = []
    while got := numbers(worker.exchange(*(ack(n) for n in done[-50:]), want=50)):
        done += got
    assert sorted(done) == list(range(count + 1))
    assert worker.exchange(*(ack(n) for n in sorted(int(i) for i in worker.held))).status is Status.FINISHED


def test_a_list_that_becomes_one_of_another_type(live: LiveFrontier, worker: HandWorker) -> None:
    """What was in it is gone, and reported as gone; what is put later is not."""
    worker.exchange(*puts(b"a", 3))
    live.redis.delete(live.key("backlog:0:a"))
    FOREIGN["string"](live, "backlog:0:a")
    worker.exchange(*puts(b"a", 2, 3))
    assert sorted(crawl_on(live, worker)) == [3, 4]
    assert live.call("census").gone == 3


def test_a_put_beside_its_list_is_repeated(live: LiveFrontier, worker: HandWorker) -> None:
    """After a lost reply, the same exchange again stores nothing twice."""
    FOREIGN["string"](live, "backlog:0:a")
    worker.exchange(*puts(b"a", 2))
    worker.send(worker.last)
    assert live.call("census").waiting == 2
