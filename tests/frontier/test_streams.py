"""Start payloads come from a stream. A message is acknowledged when all its requests are done."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from frontier.test_claim import Fed, claim, payloads
from scrapy_dq.frontier import Frontier, forget, peek, retry
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import header_of
from scrapy_dq.frontier.archive.load import Loaded, load
from scrapy_dq.frontier.archive.move import BETWEEN, Moved, Mover, ShardOf
from scrapy_dq.frontier.archive.parts import Part, Shape
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import Admission, Lease, Seen
from scrapy_dq.frontier.moves import Ack, Bury, Fail, Move, Put, Release
from support.live_frontier import HandWorker, let_idle, put
from support.redis_server import RedisServer
from support.stored import roll_back

GROUP = "scrapy_dq"


class Stream(Fed):
    """A crawl that is fed by streams."""

    @property
    def group(self) -> str:
        return f"{GROUP}:{self.key('')[:-1]}"

    def pending(self, key: int = 0) -> int:
        """Return how many messages were read and not acknowledged."""
        return int(self.redis.xpending(self.names[key], self.group)["pending"])

    def let_idle(self, consumer: str = "crawl") -> None:
        """Make all pending messages look as if *consumer* had read them an hour ago."""
        for name in self.names:
            let_idle(self, name, consumer)


@pytest.fixture
def fed(redis_server: RedisServer, crawl_name: str) -> Iterator[Stream]:
    live = Stream(redis_server.url, crawl_name, "stream")
    yield live
    live.state()
    live.close()


@pytest.fixture
def claimer(fed: Stream) -> HandWorker:
    return HandWorker(fed, "claimer")


def made_of(lease: Lease, n: int) -> Put:
    """Return a request that was made from a message."""
    return replace(put(n), message=lease.message)


def test_a_message_is_pending_until_the_last_of_its_requests_is_done(
    fed: Stream, claimer: HandWorker
) -> None:
    """A message stays pending until all its requests are done, including later ones such as a retry."""
    fed.feed(b"a", b"b")
    (lease,) = claim(claimer, 1).leases
    assert lease.message.startswith(fed.names[0].encode() + b"\0")
    claimer.exchange(made_of(lease, 1), made_of(lease, 2), Ack(lease.entry_id), seeding=3)
    assert fed.pending() == 1
    first, second = sorted(claimer.exchange(want=2, seeding=3).leases, key=lambda each: each.entry_id)
    assert first.message == second.message == lease.message
    claimer.exchange(Ack(first.entry_id), seeding=3)
    assert fed.pending() == 1
    claimer.exchange(made_of(lease, 3), Ack(second.entry_id), seeding=3)
    assert fed.pending() == 1
    (retry,) = claimer.exchange(want=1, seeding=3).leases
    claimer.exchange(Ack(retry.entry_id), seeding=3)
    assert fed.pending() == 0
    assert not fed.redis.exists(fed.key("messages"))
    assert len(fed.unread(fed.names[0])) == 1


@pytest.mark.parametrize("end", [Ack, Fail, Bury])
def test_a_message_is_acknowledged_however_its_request_ends(
    fed: Stream, claimer: HandWorker, end: type[Move]
) -> None:
    """The crawl keeps failed requests and dead letters. So the stream need not keep the message."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    arguments = {Ack: (), Fail: ("reason", "label"), Bury: ("reason",)}[end]
    claimer.exchange(end(lease.entry_id, *arguments), seeding=3)  # type: ignore[call-arg]
    assert fed.pending() == 0


def test_a_known_request_does_not_keep_its_message_pending(fed: Stream, claimer: HandWorker) -> None:
    """A duplicate put does not count a second time. So one ack is enough."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    child = made_of(lease, 1)
    claimer.exchange(child, seeding=3)
    assert claimer.exchange(child, Ack(lease.entry_id), seeding=3).dropped == (0,)
    (first,) = claimer.exchange(want=1, seeding=3).leases
    claimer.exchange(Ack(first.entry_id), seeding=3)
    assert fed.pending() == 0


def test_a_request_put_again_after_a_roll_back_is_counted(fed: Stream, claimer: HandWorker) -> None:
    """Redis was rolled back and has forgotten the claim. A worker's log puts the request again."""
    fed.feed(b"a")
    (name,) = fed.names[:1]
    fed.redis.xgroup_create(name, fed.group, "0")
    ((_, ((message, _),)),) = fed.redis.xreadgroup(fed.group, "crawl", {name: ">"})
    new = replace(put(1), message=name.encode() + b"\0" + message)
    (lease,) = claimer.exchange(new, want=1, seeding=3).leases
    claimer.exchange(Ack(lease.entry_id), seeding=3)
    assert fed.pending() == 0
    assert not fed.redis.exists(fed.key("messages"))


def test_messages_that_a_crawl_has_forgotten_are_read_again(fed: Stream, claimer: HandWorker) -> None:
    """A clear makes a crawl forget its messages. Before it, no message in progress is read again."""
    fed.feed(b"a", b"b")
    before = claim(claimer, 2).leases
    fed.let_idle()
    assert not claim(claimer, 2).leases
    claimer.exchange(Ack(before[1].entry_id), seeding=3)
    fed.redis.delete(fed.key("messages"))
    fed.let_idle()
    assert payloads(claim(claimer, 2).leases) == payloads(before[:1])


def test_messages_of_a_dead_consumer_are_read_again(fed: Stream, claimer: HandWorker) -> None:
    """Another consumer has read the message, but has not acknowledged it. Later, the crawl reads it again."""
    fed.feed(b"a")
    fed.redis.xgroup_create(fed.names[0], fed.group, "0")
    fed.redis.xreadgroup(fed.group, "other", {fed.names[0]: ">"})
    assert not claim(claimer, 1).leases
    fed.let_idle("other")
    assert payloads(claim(claimer, 1).leases) == [b"a"]


def test_messages_in_progress_do_not_hide_other_messages(fed: Stream, claimer: HandWorker) -> None:
    """New messages do not hide pending ones either, because each exchange examines some pending messages."""
    most = 8
    fed.feed(*(b"%d" % n for n in range(2 * most + 1)))
    while len(claimer.held) <= 2 * most:
        claim(claimer, 50)
    last, _ = fed.redis.xrevrange(fed.names[0], count=1)[0]
    assert fed.redis.hdel(fed.key("messages"), fed.names[0].encode() + b"\0" + last)
    fed.let_idle()
    fed.feed(*(b"new" for _ in range(4)))
    found = [payloads(claim(claimer, 1).leases) for _ in range(4)]
    assert found == [[b"new"], [b"new"], [b"%d" % (2 * most)], [b"new"]]


def test_pending_messages_of_every_stream_are_read_again(fed: Stream, claimer: HandWorker) -> None:
    for key in (0, 1):
        fed.feed(b"%d" % key, key=key)
    claim(claimer, 2)
    fed.redis.delete(fed.key("messages"))
    fed.let_idle()
    assert payloads(claim(claimer, 2).leases) == [b"0", b"1"]


def test_messages_of_dropped_requests_are_acknowledged(fed: Stream, claimer: HandWorker) -> None:
    """The dropped requests wait, were returned or are delayed. No later run may read their messages again."""
    fed.feed(b"a", b"b")
    (first, second) = claim(claimer, 2).leases
    other = replace(put(9, partition=b"other"), message=second.message)
    waits = [replace(made_of(first, n), partition=b"trap") for n in range(4)]
    late = replace(made_of(first, 4), partition=b"trap", due_at=time.monotonic() + 1000)
    claimer.exchange(*waits, late, other, Ack(first.entry_id), Ack(second.entry_id), seeding=3)
    lease = next(each for each in claimer.exchange(want=2, seeding=3).leases if each.partition == b"trap")
    claimer.exchange(Release(lease.entry_id), seeding=3)
    assert fed.pending() == 2
    assert drop(fed.redis, fed.crawl, "trap") == 5
    assert fed.pending() == 1
    assert fed.redis.hgetall(fed.key("messages")) == {second.message: b"1"}


@pytest.mark.parametrize("end", [Fail, Bury])
def test_a_retried_request_is_counted_again(fed: Stream, claimer: HandWorker, end: type[Move]) -> None:
    """If a retried request were not counted, its end would acknowledge the message too early."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    claimer.exchange(made_of(lease, 1), made_of(lease, 2), Ack(lease.entry_id), seeding=3)
    arguments = {Fail: ("reason", "label"), Bury: ("reason",)}[end]
    claimer.exchange(want=1, seeding=3)
    (gone,) = claimer.held
    claimer.exchange(end(gone, *arguments), seeding=3)  # type: ignore[call-arg]
    retry(fed.redis, fed.crawl, peek(fed.redis, fed.crawl), failed=bool, dead=bool)
    claimer.exchange(want=1, seeding=3)
    for left in (1, 0):
        (held,) = claimer.held
        claimer.exchange(Ack(held), want=1, seeding=3)
        assert fed.pending() == left


@pytest.mark.parametrize("due_in", [0.0, 100.0], ids=["waits", "delayed"])
def test_a_request_that_is_put_twice_under_its_id_counts_once(
    fed: Stream, claimer: HandWorker, due_in: float
) -> None:
    """A user forgets the fingerprint. Then a replay log puts the request again while its entry waits."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    due_at = time.monotonic() + due_in if due_in else 0.0
    child = replace(made_of(lease, 1), admission=Admission.SEEN, due_at=due_at)
    claimer.exchange(child, Ack(lease.entry_id), seeding=3)
    forget(fed.redis, fed.crawl, [(child.token, b"")])
    assert not claimer.exchange(child, seeding=3).dropped
    fed.advance(2 * due_in)
    claimer.exchange(want=2, seeding=3)
    claimer.exchange(Ack(child.entry_id), seeding=3)
    assert fed.pending() == 0


@pytest.mark.usefixtures("_quick_disks")
def test_a_move_acknowledges_messages_whose_requests_are_stored(fed: Stream, claimer: HandWorker) -> None:
    """After the move, shards other than home could not report that a request of a message is done."""
    fed.feed(b"a", b"b")
    first, second = claim(claimer, 2).leases
    children = (replace(made_of(first, n), partition=b"host %d" % n) for n in range(9))
    claimer.exchange(*children, Ack(first.entry_id), Release(second.entry_id), seeding=3)
    claimer.leave()
    assert fed.pending() == 2

    async def nobody(*_: object) -> None: ...

    def moved(shards: int) -> Moved:
        def of_shard(name: str) -> ShardOf:
            async def frontier(number: int) -> Frontier:
                return Frontier(fed.frontier.client, name, fed.order, shard=number)

            return frontier

        mover = Mover(Shape(fed.order, Seen.EXACT, shards), int, nobody)
        return fed.run(mover.in_same_redis(of_shard(fed.crawl), of_shard(fed.crawl + BETWEEN)))  # type: ignore[no-any-return]

    try:
        assert moved(3).entries > 3
        assert fed.pending() == 0
        assert not fed.redis.exists(fed.key("messages"))
        moved(1)
        worker = HandWorker(fed, "worker")
        while held := claim(worker, 9).leases:
            worker.exchange(*(Ack(lease.entry_id) for lease in held), seeding=3)
        assert worker.exchange(seeding=3).census.done == 9
        assert not fed.redis.exists(fed.key("messages"))
    finally:
        for number in (1, 2):
            roll_back(fed.redis, Shard(fed.crawl, number), {})


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("shards", [1, 3])
def test_an_import_acknowledges_the_messages_of_its_requests(
    fed: Stream, claimer: HandWorker, shards: int
) -> None:
    """If the messages stayed pending, workers would read them again, beside the imported requests."""
    fed.feed(b"a", b"b", b"c")
    first, second, _ = claim(claimer, 3).leases
    late = replace(made_of(first, 3), due_at=time.monotonic() + 99)
    children = made_of(first, 1), made_of(first, 2), late
    claimer.exchange(*children, Ack(first.entry_id), Release(second.entry_id), seeding=3)
    frontiers = [Frontier(fed.frontier.client, fed.crawl, fed.order, shard=n) for n in range(shards)]

    async def moved() -> Loaded:
        header = await header_of(frontiers[:1])
        parts = [part async for part in dump(frontiers[:1], header)]
        roll_back(fed.redis, frontiers[0].name, {})

        async def given() -> AsyncIterator[Part]:
            for part in parts:
                yield part

        target = Shape(fed.order, Seen.EXACT, len(frontiers))
        return await load(frontiers, header, given(), target, priority_of=lambda payload: 0)

    try:
        assert fed.pending() == 3
        assert fed.run(moved()).entries == 5
        assert fed.pending() == 0
        if shards == 1:
            leases = HandWorker(fed, "worker").exchange(want=9, seeding=3).leases
            assert len(leases) == 4
            assert {lease.message for lease in leases} == {b""}
    finally:
        for number in (1, 2):
            roll_back(fed.redis, Shard(fed.crawl, number), {})


@pytest.mark.parametrize(
    "meta", ['{"depth": 3}', '{"at": 1764230400123456789, "of": []}', "null", ' [{"a": 0.1}] ', "{no json"]
)
def test_several_fields_of_a_message_become_json(fed: Stream, claimer: HandWorker, meta: str) -> None:
    """`meta` is JSON and is not changed. Text that is not JSON stays text.

    Lua does not decode it, because Lua would round large numbers and turn an empty list into an object.
    """
    fields = {"url": "http://a.com", "meta": meta, "page": "2"}
    fed.redis.xadd(fed.names[0], fields)
    (data,) = payloads(claim(claimer, 1).leases)
    assert json.loads(data) == fields | {"meta": meta if "no json" in meta else json.loads(meta)}


def test_a_deleted_message_is_not_claimed(fed: Stream, claimer: HandWorker) -> None:
    """Another program trims the stream while the message is pending."""
    fed.feed(b"a", b"b")
    before = claim(claimer, 1).leases
    for message_id, _ in fed.redis.xrange(fed.names[0]):
        fed.redis.xdel(fed.names[0], message_id)
    fed.redis.delete(fed.key("messages"))
    fed.let_idle()
    assert not claim(claimer, 2).leases
    claimer.exchange(Ack(before[0].entry_id), seeding=3)
