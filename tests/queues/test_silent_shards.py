"""A Queue with one silent shard: only calls for that shard wait. The tests use a real Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from secrets import token_hex

import pytest

from queues.conftest import Background
from scrapy_dq import Queue
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue import calls
from scrapy_dq.queue.calls import Get
from scrapy_dq.queue.member import Member
from support.clusters import Cluster
from support.redis_server import RedisServer
from support.waiting import wait_until

SHARDS = 3
HOME, SILENT, OTHER = range(SHARDS)
SETTINGS = {"DQ_SHARDS": SHARDS, "DQ_ROLLBACK_HORIZON": 1, "DQ_SHUTDOWN_GRACE": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster whose replicas do not take over, and which writes each put to its disk at once."""
    with closing(Cluster(timeout_ms=600_000)) as cluster:
        for server in cluster.servers:
            cluster.run(server, "CONFIG", "SET", "appendfsync", "always")
        yield cluster


class Spread:
    """A crawl with its shards on three nodes. The first digit of an item is the number of its shard."""

    def __init__(self, cluster: Cluster, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        def nodes(crawl: str) -> list[RedisServer]:
            return [cluster.owner(keys.meta(keys.Shard(crawl, shard))) for shard in range(SHARDS)]

        self._crawl = next(
            name for n in count() if len({*nodes(name := f"crawl-{token_hex(6)}-{n}")}) == SHARDS
        )
        self._nodes, self._url, self._stack = nodes(self._crawl), cluster.url, stack
        self.queue = self.another()
        any_put, items = calls._put, self.queue._items

        def put(payload: bytes) -> Put:
            while True:
                made = any_put(payload)
                if shard_of(made.partition, made.token, SHARDS) == int(str(items.decode(payload))[0]):
                    return made

        monkeypatch.setattr(calls, "_put", put)

    def another(self, maxsize: int = 0, **settings: int) -> Queue:
        """Return another queue of this crawl, with its own worker."""
        settings = {**SETTINGS, **settings}
        return self._stack.enter_context(Queue(self._crawl, maxsize, url=self._url, settings=settings))

    @property
    def member(self) -> Member:
        assert self.queue._member is not None
        return self.queue._member

    @property
    def worker(self) -> Worker:
        return self.member.worker

    def waits(self, shard: int) -> bool:
        """Tell whether a put for this shard waits."""
        return self.member._callers.puts.any_wait_for(shard)

    def forget_member(self, shard: int) -> None:
        """Have a shard declare the worker dead."""
        name = keys.prefix(keys.Shard(self._crawl, shard))
        with self._nodes[shard].client() as client:
            client.hset(f"{name}worker:{self.worker.parts[shard].id}", "fenced", 1)

    @contextmanager
    def suspended(self, shard: int) -> Iterator[None]:
        """Suspend the node of a shard, so that it does not answer."""
        self._nodes[shard].suspend()
        try:
            yield
        finally:
            self._nodes[shard].resume()

    @contextmanager
    def away(self, shard: int) -> Iterator[None]:
        """Suspend the node of a shard, and wait until the queue has noticed."""
        with self.suspended(shard):
            wait_until(lambda: self.worker.parts[shard].outage, "the outage", 60)
            yield

    def obtained(self) -> str:
        """Return the item of get_nowait(). Repeat the call if a shard on a busy machine answers too late."""
        found: list[str] = []

        def get() -> bool:
            with suppress(FrontierUnavailable):
                found.append(self.queue.get_nowait())
            return bool(found)

        wait_until(get, "an item", 60)
        return found[0]


@pytest.fixture
def spread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spread]:
    with ExitStack() as stack:
        yield Spread(cluster, stack, monkeypatch)


def test_puts_for_other_shards_are_stored(spread: Spread) -> None:
    """This includes items that one put_all() puts before and after an item for the silent shard."""
    q = spread.queue
    q.put("0first")
    with spread.away(SILENT):
        several = Background(
            lambda: q.put_all(["1a", *(f"{shard}b{n}" for n in range(100) for shard in (HOME, OTHER)), "1c"])
        )
        wait_until(lambda: spread.waits(SILENT), "the put for the silent shard waits")
        one = Background(lambda: q.put("1d"))
        assert one.blocked
        q.put("2e")
        found = [spread.obtained() for _ in range(202)]
        assert {item[0] for item in found} == {"0", "2"}
        # Each shard keeps its order.
        assert [item for item in found if item[0] == "2"] == [*(f"2b{n}" for n in range(100)), "2e"]
        assert one.blocked
        assert several.blocked
        with pytest.raises(FrontierUnavailable, match="was not stored"):
            q.put_nowait("1f")
    several.wait(60)
    one.wait(60)
    assert [q.get(timeout=60) for _ in range(3)] == ["1a", "1c", "1d"]


def test_an_item_of_another_shard_is_found(spread: Spread) -> None:
    """Home may also be silent. If no item is found, the call raises: the silent shard may have one."""
    q = spread.queue
    for shard, item in (HOME, "2a"), (SILENT, "0b"), (OTHER, "1c"):
        q.put(item)
        with spread.away(shard):
            assert spread.obtained() == item
        wait_until(lambda: not spread.worker.outage, "no outage", 60)
    with spread.away(SILENT):
        with pytest.raises(FrontierUnavailable, match="not known whether anything waits there"):
            q.get_nowait()
        with pytest.raises(FrontierUnavailable, match="not known whether anything waits there"):
            q.qsize()
    wait_until(lambda: not spread.worker.outage, "no outage", 60)


def test_no_new_item_is_put_while_home_does_not_answer(spread: Spread) -> None:
    """Only home can keep the run open for a new item."""
    q = spread.queue
    q.put("0first")
    with spread.away(HOME), pytest.raises(FrontierUnavailable, match="was not stored"):
        q.put_nowait("2a")
    q.put("2b")
    assert {q.get(timeout=60), q.get(timeout=60)} == {"0first", "2b"}


def test_callers_share_the_items_of_one_shard(spread: Spread) -> None:
    """Each caller first asks for one item, because no worker knows yet that all items are in one shard."""
    # On a busy machine, a shard may miss a short time-out.
    spread.queue = q = spread.another(REDIS_PARAMS={"socket_timeout": 60})
    other = spread.another()
    q.put("0first")
    assert q.get() == "0first"
    other.put_all(["2a", "2b", "2c"])
    gets = [Get(patient=False) for _ in range(3)]
    callers = spread.member._callers
    spread.member._thread.submit(lambda: [callers.add(get) for get in gets])
    assert {get.future.result(60)[1] for get in gets} == {"2a", "2b", "2c"}


def test_shards_that_answered_are_not_asked_again_because_of_a_slow_one(spread: Spread) -> None:
    """A call that waits for a slow shard must not ask the other shards without pauses."""
    q = spread.queue
    q.put("0first")
    assert q.get() == "0first"
    before = spread.worker.composed
    with spread.suspended(SILENT):
        for call in (q.get_nowait, q.qsize):
            with pytest.raises(FrontierUnavailable):
                call()
    assert spread.worker.composed - before < 100
