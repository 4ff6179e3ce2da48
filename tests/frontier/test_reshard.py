"""The number of shards of a crawl at rest is changed: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from typing import Any

import msgpack
import pytest
import redis

from scrapy_dq.frontier import forget, keys, peek
from scrapy_dq.frontier.admin.convert import convert_some
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.admin.shards import before_and_after
from scrapy_dq.frontier.frontier import Frontier, Home
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import (
    ELSEWHERE,
    UNFINISHED,
    Admission,
    FrontierRefused,
    FrontierUnavailable,
    Order,
    Seen,
    Status,
    Terms,
)
from scrapy_dq.frontier.resharding import transfer
from scrapy_dq.frontier.resharding.reshard import reshard
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.worker.routing import shard_of
from support import stored
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, bury, fail, put
from support.redis_server import RedisServer

HOSTS = [b"%02d.example" % n for n in range(25)]
MOST = 6


class Part(LiveFrontier):
    """A shard that is not home."""

    def __init__(self, url: str, home: LiveFrontier, seen: Seen, shard: int, of: tuple[Any, ...]) -> None:
        super().__init__(url, home.crawl, home.order)
        self.frontier = Frontier(self._client, self.crawl, self.order, seen=seen, shard=shard)
        self._of = Home(*of, Frontier(self._client, self.crawl, self.order).standing)

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        return super().call(method, *args, *((self._of,) if method == "join" else ()), **named)

    def close(self) -> None:
        self.redis.close()


class Crawl:
    """A crawl of several shards with one worker, which puts where a worker would."""

    def __init__(self, url: str, name: str, seen: Seen, partitioned: bool) -> None:
        self.url, self.name, self.seen, self.partitioned = url, name, seen, partitioned
        self.redis = redis.Redis.from_url(url)
        self.numbers = count(1)
        self.workers: list[HandWorker] = []
        self._stack = ExitStack()

    def join(self, shards: int) -> None:
        """Have a worker join, in all shards."""
        crawl = replace(IDENTITY, shards=shards, partition_by="slot" if self.partitioned else "none")
        home = self._stack.enter_context(closing(LiveFrontier(self.url, self.name, Order.FIFO, self.seen)))
        home.close = home.redis.close  # type: ignore[method-assign]
        first = HandWorker(home, "worker", crawl)
        self.workers = [first]
        for number in range(1, shards):
            of = first.epoch, first.run, first.joined.shards_exist
            part = self._stack.enter_context(closing(Part(self.url, home, self.seen, number, of)))
            self.workers.append(HandWorker(part, "worker", crawl))
        home.call("note_shards", first.epoch, first.run)

    def worker_of(self, partition: bytes, token: bytes) -> HandWorker:
        return self.workers[shard_of(partition, token, len(self.workers))]

    def exchange(self, worker: HandWorker, *moves: Any, want: int = 0) -> list[bytes]:
        at = UNFINISHED if worker is self.workers[0] else ELSEWHERE
        receipt = worker.exchange(*moves, want=want, terms=Terms(finish_at=at))
        return [lease.entry_id for lease in receipt.leases]

    def put(self, **other: Any) -> tuple[bytes, bytes]:
        number = next(self.numbers)
        partition = HOSTS[number % len(HOSTS)] if self.partitioned else b""
        new = put(number, partition=partition, payload=b"%d" % number, **other)
        token = b"%020d" % number if new.admission is Admission.SEEN else new.token
        new = replace(new, token=token)
        self.exchange(self.worker_of(partition, token), new)
        return partition, token

    def settle(self, ending: Callable[[int], Any], most: int) -> None:
        """End up to *most* leases of each shard."""
        for worker in self.workers:
            taken = self.exchange(worker, want=most)
            self.exchange(worker, *(replace(ending(0), entry_id=each) for each in taken))

    def leave(self) -> None:
        for worker in self.workers:
            worker.leave()

    def reshard(self, to: int) -> Any:
        async def run() -> Any:
            client = redis.asyncio.Redis.from_url(self.url)
            frontiers = [
                Frontier(client, self.name, Order.FIFO, seen=self.seen, shard=number)
                for number in range(MOST)
            ]
            try:
                before = before_and_after(await client.hget(keys.meta(self.name), "shards"))[0]
                return await reshard(frontiers[: max(before, to)], to)
            finally:
                await client.aclose()

        return asyncio.run(run())

    def entries(self) -> Counter[tuple[str, bytes]]:
        """Return where each entry is, without its shard."""
        found: Counter[tuple[str, bytes]] = Counter()
        for number in range(MOST):
            prefix = keys.prefix(Shard(self.name, number))
            for name in self.redis.scan_iter(prefix.replace("*", "\\*") + "backlog:*", count=1000):
                found.update(("backlog", each[8:20]) for each in self.redis.lrange(name, 0, -1))
            for label in ("returned", "quarantine"):
                for each in self.redis.zrange(prefix + label, 0, -1):
                    found["returned", each.partition(b"\0")[2][16:28]] += 1
            found.update(("delayed", each[:12]) for each in self.redis.zrange(prefix + "delayed", 0, -1))
            found.update(("dead", each) for each in self.redis.hkeys(prefix + "dead"))
            failed = self.redis.lrange(prefix + "failed", 0, -1)
            found.update(("failed", msgpack.unpackb(each, raw=True)[0]) for each in failed)
        return found

    def check(self, shards: int) -> None:
        """See that entries are where workers look for them, that counts are right, and nothing is left."""
        for number in range(MOST):
            shard = Shard(self.name, number)
            if number >= shards:
                assert not list(self.redis.scan_iter(keys.prefix(shard) + "*", count=1000))
                continue
            if self.partitioned:
                stored.stored_state(self.redis, shard, Order.FIFO)
                for partition in self.redis.hkeys(keys.prefix(shard) + "bands"):
                    assert shard_of(partition, b"", shards) == number
            meta = self.redis.hgetall(keys.meta(shard))
            assert int(meta.get(b"shards", b"1")) == shards
            assert not [name for name in meta if name.startswith(b"reshard")]

    def close(self) -> None:
        for number in range(MOST):
            stored.roll_back(self.redis, Shard(self.name, number), {})
        self._stack.close()
        self.redis.close()


@pytest.fixture
def crawl_of(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., Crawl]]:
    with ExitStack() as crawls:
        yield lambda seen, partitioned: crawls.enter_context(
            closing(Crawl(redis_server.url, crawl_name, seen, partitioned))
        )


def filled(crawl: Crawl, shards: int) -> list[tuple[bytes, bytes]]:
    """Fill a crawl with all that there is; return partition and token of each put."""
    crawl.join(shards)
    known = [crawl.put(admission=Admission.SEEN) for _ in range(120)]
    crawl.settle(fail, 4)
    crawl.settle(lambda n: bury(n), 3)
    crawl.settle(ack, 2)
    known += [crawl.put(admission=Admission.SEEN, priority=n % 3) for n in range(60)]
    known += [crawl.put(due_in=900.0) for _ in range(20)]
    for worker in crawl.workers:
        crawl.exchange(worker, want=3)
    crawl.leave()  # they return
    return known


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("seen", list(Seen))
@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 4), (3, 2)])
def test_all_is_moved(
    crawl_of: Callable[..., Crawl], seen: Seen, partitioned: bool, before: int, after: int
) -> None:
    """And a worker with the new number finds each request seen, and all of them waiting."""
    crawl = crawl_of(seen, partitioned)
    known = filled(crawl, before)
    entries = crawl.entries()
    assert {label for label, _ in entries} == {"backlog", "returned", "delayed", "dead", "failed"}
    done = crawl.reshard(after)
    assert crawl.entries() == entries
    assert done.entries > 0
    crawl.check(after)
    crawl.join(after)
    admitted = 0
    for partition, token in known:
        worker = crawl.worker_of(partition, token)
        waits = worker.exchange(terms=Terms(finish_at=ELSEWHERE)).census
        new = put(next(crawl.numbers), partition=partition)
        admission = Admission.SEEN if len(token) == 20 else Admission.ID
        census = worker.exchange(
            replace(new, admission=admission, token=token), terms=Terms(finish_at=ELSEWHERE)
        ).census
        admitted += census.waiting - waits.waiting
    assert admitted == 0


def test_tokens_go_where_partitions_go() -> None:
    for before, after in ((1, 3), (2, 4), (3, 2), (4, 6), (6, 4)):
        routes = Routes(before, after, True, Seen.EXACT)
        for host in range(5000):
            partition = b"%d.example" % host
            shard = shard_of(partition, b"", before)
            assert routes.of_entry(partition, b"") in routes.of_tokens("seen", shard)


@pytest.fixture
def _quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, but do not wait for a disk, which takes a second or two each time."""

    async def written(frontier: Frontier, write: Callable[[Frontier], Any], deadline: float) -> str:
        await write(frontier)
        return ""

    monkeypatch.setattr(transfer, "written", written)


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """Return a function that has the n-th script of a reshard fail, before or after Redis has run it."""
    call = Script.call
    left = [0, False]

    async def counted(self: Script, *args: Any) -> Any:
        left[0] -= 1
        chosen = left[0] == 0
        if chosen and not left[1]:
            raise ConnectionError
        reply = await call(self, *args)
        if chosen:
            raise ConnectionError
        return reply

    def fail_at(n: int, late: bool) -> None:
        left[:] = n, late

    monkeypatch.setattr(Script, "call", counted)
    return fail_at


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize(
    ("before", "after", "late", "partitioned"), [(1, 3, True, False), (3, 2, False, True)]
)
def test_a_reshard_that_is_killed_again_and_again_loses_and_doubles_nothing(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None], monkeypatch: pytest.MonkeyPatch,
    before: int, after: int, late: bool, partitioned: bool,
) -> None:  # fmt: skip
    """At each of its steps once; meanwhile no worker can join."""
    monkeypatch.setattr("scrapy_dq.frontier.resharding.source.PART", 25)
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)  # so that some has left when some has not arrived
    crawl = crawl_of(Seen.EXACT, partitioned)
    filled(crawl, before)
    entries, kills = crawl.entries(), 0
    while True:
        killed_at(kills + 1, late)
        try:
            crawl.reshard(after)
        except FrontierUnavailable:
            kills += 1
        else:
            break
        killed_at(0, False)
        changing = before_and_after(crawl.redis.hget(keys.meta(crawl.name), "shards"))
        if changing[0] != changing[1]:
            for shards in {before, after}:
                with pytest.raises(FrontierRefused, match=r"DQ_SHARDS|half moved"):
                    crawl.join(shards)
    killed_at(0, False)
    assert kills > 20
    assert crawl.entries() == entries
    crawl.check(after)


@pytest.mark.usefixtures("_quick_disks")
def test_a_shard_that_was_rolled_back_meanwhile_is_reported(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """What it had received has left its old shard, and is gone: the crawl must not go on."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    there = Shard(crawl.name, 1)
    before: stored.Dump = {}
    for at in count(1):
        killed_at(at, True)
        with pytest.raises(FrontierUnavailable):
            crawl.reshard(3)
        if not before and crawl.redis.exists(keys.meta(there)):
            before = stored.dump(crawl.redis, there)
        sent = crawl.redis.hget(keys.meta(crawl.name), "reshard:to 1")
        if sent:
            break
    stored.roll_back(crawl.redis, there, before)
    killed_at(0, False)
    with pytest.raises(FrontierRefused, match="the Redis of shard 1 was rolled back, or emptied"):
        crawl.reshard(3)


def test_what_is_moved_is_on_disk_before_it_leaves(crawl_of: Callable[..., Crawl]) -> None:
    """With a Redis that has an AOF nothing is doubtful."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    assert crawl.reshard(3).doubts == []
    crawl.check(3)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("partitioned", [True, False])
def test_of_two_that_move_a_crawl_at_once_one_is_refused(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    """Somebody repeats a command that is still running: what one has read must not leave for the other."""
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)
    crawl = crawl_of(Seen.EXACT, partitioned)
    filled(crawl, 1)
    entries, call = crawl.entries(), Script.call
    begun = []

    async def second(self: Script, *args: Any) -> Any:
        if not begun and b"reshard:to 1" in crawl.redis.hkeys(keys.meta(crawl.name)):
            begun.append(1)
            await reshard([Frontier(args[0], crawl.name, Order.FIFO, shard=number) for number in range(3)], 3)
        return await call(self, *args)

    monkeypatch.setattr(Script, "call", second)
    with pytest.raises(FrontierRefused, match="or the same command runs elsewhere"):
        crawl.reshard(3)
    assert begun
    assert crawl.entries() == entries
    crawl.check(3)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("left", ["begun", "empty"])
def test_what_was_lost_while_it_was_moved_is_reported(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Of sets, too, when nothing more is to arrive there; and if nothing of the new shard is left."""
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    there, stay = Shard(crawl.name, 1), {host for host in HOSTS if not shard_of(host, b"", 2)}
    begun: stored.Dump = {}
    call = Script.call

    async def killed_when_all_is_moved(self: Script, *args: Any) -> Any:
        reply = await call(self, *args)
        if not begun and crawl.redis.exists(keys.meta(there)):
            begun.update(stored.dump(crawl.redis, there))
        if set(crawl.redis.hkeys(keys.prefix(crawl.name) + "bands")) <= stay:
            raise ConnectionError
        return reply

    with monkeypatch.context() as patched:
        patched.setattr(Script, "call", killed_when_all_is_moved)
        with pytest.raises(FrontierUnavailable):
            crawl.reshard(2)
    stored.roll_back(crawl.redis, there, begun if left == "begun" else {})
    with pytest.raises(FrontierRefused, match="the Redis of shard 1 was rolled back, or emptied"):
        crawl.reshard(2)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("last", [True, False])
def test_what_was_lost_before_it_left_is_moved_by_the_repeat(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """The new shard is rolled back when delayed entries have arrived; others arrive after them, or none."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    entries, there = crawl.entries(), Shard(crawl.name, 1)
    held: stored.Dump = {}
    arrive = transfer.Transfer.arrive

    async def rolled_back(
        self: transfer.Transfer, to: int, of: int, label: str, *args: Any, **on: Any
    ) -> None:
        chosen = to == 1 and label == ("delayed" if not last else "failed")
        before = stored.dump(crawl.redis, there) if chosen else {}
        await arrive(self, to, of, label, *args, **on)
        if chosen and not held:
            held.update(before)
            stored.roll_back(crawl.redis, there, before)

    with monkeypatch.context() as patched:
        patched.setattr(transfer.Transfer, "arrive", rolled_back)
        with pytest.raises(FrontierRefused, match="is still there: repeat the command"):
            crawl.reshard(2)
    assert held
    crawl.reshard(2)
    assert crawl.entries() == entries
    crawl.check(2)


@pytest.mark.usefixtures("_quick_disks")
def test_a_reshard_that_home_has_forgotten_is_begun_anew(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """Home was rolled back to before it: no old count hides what is new."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    before = stored.dump(crawl.redis, crawl.name)
    killed_at(60, True)
    with pytest.raises(FrontierUnavailable):
        crawl.reshard(3)
    killed_at(0, False)
    stored.roll_back(crawl.redis, crawl.name, before)
    entries = at_home(crawl)
    crawl.reshard(3)
    assert crawl.entries() == entries
    crawl.check(3)


def at_home(crawl: Crawl) -> Counter[tuple[str, bytes]]:
    """Return where each entry of home is."""
    others = [(Shard(crawl.name, n), stored.dump(crawl.redis, Shard(crawl.name, n))) for n in range(1, MOST)]
    for shard, _ in others:
        stored.roll_back(crawl.redis, shard, {})
    try:
        return crawl.entries()
    finally:
        for shard, dump in others:
            stored.roll_back(crawl.redis, shard, dump)


@pytest.mark.usefixtures("_quick_disks")
def test_limits_set_by_hand_hold_in_the_new_shard(crawl_of: Callable[..., Crawl]) -> None:
    """Though the settings have none."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    host = next(host for host in HOSTS if shard_of(host, b"", 2))
    crawl.workers[0].live.call("limit", host, delay_s=5.0, concurrency=1)
    crawl.reshard(2)
    crawl.join(2)
    assert crawl.workers[1].live.call("limit", host)[:2] == (5.0, 1)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("cleared", [True, False])
def test_a_shard_that_is_a_run_behind_begins_that_of_home(
    crawl_of: Callable[..., Crawl], cleared: bool
) -> None:
    """What it has of the run before is not moved, and what is moved there is not deleted by the next join."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    entries = at_home(crawl)
    if cleared:
        crawl.redis.hset(keys.meta(Shard(crawl.name, 1)), "cleared", 1)
    else:
        crawl.redis.hset(keys.meta(crawl.name), "run", 1)
    crawl.reshard(3)
    assert crawl.entries() == entries
    crawl.join(3)
    assert crawl.entries() == entries


@pytest.mark.usefixtures("_quick_disks")
def test_what_cannot_be_done_meanwhile_is_refused(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """A retry would take records out of a list that is half moved."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    killed_at(30, True)
    with pytest.raises(FrontierUnavailable):
        crawl.reshard(3)
    killed_at(0, False)
    home = Shard(crawl.name, 0)
    overview = peek(crawl.redis, crawl.name)
    for change in (
        lambda: retry_records(crawl.redis, home, overview, (), [b"x" * 12]),
        lambda: crawl.workers[0].live.call("limit", HOSTS[0]),
        lambda: convert_some(crawl.redis, home, Seen.COMPACT, []),
        lambda: forget(crawl.redis, crawl.name, [(b"x" * 20, b"-")]),
    ):
        with pytest.raises(FrontierRefused, match="half moved from 1 to 3 shards"):
            change()


@pytest.mark.usefixtures("_quick_disks")
def test_a_worker_that_was_away_is_told_that_its_crawl_was_moved(crawl_of: Callable[..., Crawl]) -> None:
    """It would take entries for those of other shards."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    crawl.reshard(3)
    for worker in crawl.workers:
        answer = worker.rejoin("again")
        assert (answer.status, answer.shards) == (Status.LOST, "3")
