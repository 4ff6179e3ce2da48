"""A worker claims start payloads: Redis moves them to the worker's leases. No payload is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_dq.frontier import peek, retry
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Claim, Lease, Order, StartKeys, Status, Terms
from scrapy_dq.frontier.moves import Ack, Bury, Fail, Move, Release
from support.live_frontier import HandWorker, LiveFrontier, limited, put
from support.redis_server import RedisServer

MARK = b"\x02"
Feed = Callable[..., None]


class Fed(LiveFrontier):
    """A crawl with two start keys of one kind. `feed` adds payloads to one of the keys."""

    def __init__(self, url: str, crawl: str, kind: str, order: Order = Order.PRIORITY_LIFO) -> None:
        self.kind = kind
        self.names = (f"{crawl}:first", f"{crawl}:second")
        super().__init__(url, crawl, order, start_keys=StartKeys(kind, self.names, MARK))

    def feed(self, *payloads: bytes, key: int = 0) -> None:
        name = self.names[key]
        if self.kind == "list":
            self.redis.rpush(name, *payloads)
        elif self.kind == "set":
            self.redis.sadd(name, *payloads)
        elif self.kind == "stream":
            for payload in payloads:
                self.redis.xadd(name, {"data": payload})
        else:
            self.redis.zadd(name, {payload: -n for n, payload in enumerate(payloads)})

    def left(self) -> int:
        """Return how many payloads wait in both keys."""
        if self.kind == "stream":
            return sum(len(self.unread(name)) for name in self.names)
        count = {"list": self.redis.llen, "set": self.redis.scard, "zset": self.redis.zcard}[self.kind]
        return sum(int(count(name)) for name in self.names)

    def unread(self, name: str) -> list[Any]:
        """Return the messages of a stream that its group has not received yet."""
        groups = self.redis.xinfo_groups(name) if self.redis.exists(name) else []
        after = f"({groups[0]['last-delivered-id'].decode()}" if groups else "-"
        return list(self.redis.xrange(name, after))

    def close(self) -> None:
        self.redis.delete(*self.names)
        super().close()


def claiming(fed: Fed) -> Terms:
    return Terms(claim=Claim(fed.kind, MARK, os.urandom(8)))


def payloads(leases: tuple[Lease, ...]) -> list[bytes]:
    """Return the start payloads among *leases*, in their order."""
    return [lease.payload.removeprefix(MARK) for lease in leases if lease.payload.startswith(MARK)]


@pytest.fixture(params=["list", "set", "zset", "stream"])
def fed(request: pytest.FixtureRequest, redis_server: RedisServer, crawl_name: str) -> Iterator[Fed]:
    live = Fed(redis_server.url, crawl_name, request.param)
    yield live
    live.close()


@pytest.fixture
def claimer(fed: Fed) -> HandWorker:
    return HandWorker(fed, "claimer")


def claim(worker: HandWorker, want: int) -> Receipt:
    assert isinstance(worker.live, Fed)
    return worker.exchange(want=want, seeding=3, terms=claiming(worker.live))


def test_one_start_payload_is_claimed_for_each_wanted_lease(fed: Fed, claimer: HandWorker) -> None:
    """A worker claims one payload for each lease that it wants, and none if it wants none."""
    fed.feed(*(b"%d" % n for n in range(10)))
    assert claim(claimer, 0).leases == ()
    receipt = claim(claimer, 3)
    assert len(receipt.leases) == 3 == receipt.census.in_flight
    assert fed.left() == 7
    assert all(lease.payload.startswith(MARK) for lease in receipt.leases)
    assert len({lease.entry_id for lease in receipt.leases}) == 3


def test_start_payloads_are_claimed_in_the_order_of_their_key(fed: Fed, claimer: HandWorker) -> None:
    """Workers take a list's head first, and a sorted set's highest score first. A set has no order."""
    fed.feed(b"a", b"b", b"c", b"d")
    taken = payloads((*claim(claimer, 3).leases, *claim(claimer, 3).leases))
    assert sorted(taken) == [b"a", b"b", b"c", b"d"]
    if fed.kind != "set":
        assert taken == [b"a", b"b", b"c", b"d"]


def test_the_first_start_key_is_used_first(fed: Fed, claimer: HandWorker) -> None:
    """An exchange takes payloads from the start keys in the order of the settings."""
    fed.feed(b"later 1", b"later 2", key=1)
    fed.feed(b"first")
    assert payloads(claim(claimer, 2).leases)[0] == b"first"
    fed.feed(b"again")
    assert payloads(claim(claimer, 1).leases) == [b"again"]


def test_a_repeat_of_the_exchange_gets_the_same_claims(fed: Fed, claimer: HandWorker) -> None:
    """A lost reply loses no payload."""
    fed.feed(b"a", b"b", b"c")
    first = claim(claimer, 2)
    assert claimer.send(claimer.last).leases == first.leases
    assert fed.left() == 1


def test_a_late_copy_after_a_rollback_claims_under_another_id(fed: Fed, claimer: HandWorker) -> None:
    """The worker still works on its earlier claim. With one id for both claims, one ack would settle both."""
    snapshot = fed.dump()
    fed.feed(b"a")
    (before,) = claim(claimer, 1).leases
    fed.roll_back(snapshot)
    fed.feed(b"b")
    (late,) = claimer.send(claimer.last).leases
    assert (payloads((before,)), payloads((late,))) == ([b"a"], [b"b"])
    assert late.entry_id != before.entry_id


def test_a_dead_workers_claims_are_taken_by_another(fed: Fed, claimer: HandWorker) -> None:
    """Other workers get the claims as suspects, one at a time, like all leases of a dead worker."""
    fed.feed(b"a", b"b")
    lost = payloads(claim(claimer, 2).leases)
    other = HandWorker(fed, "other")
    other.exchange(put(1), seeding=3)
    other.reclaim("claimer")
    found = []
    for _ in lost:
        leases = other.exchange(want=9, seeding=3).leases
        assert len(payloads(leases)) == 1
        found += payloads(leases)
        other.exchange(*(Ack(lease.entry_id) for lease in leases), seeding=3)
    assert sorted(found) == sorted(lost)
    assert fed.left() == 0


@pytest.mark.parametrize("crawl", [limited(delay_s=1000.0), limited(concurrency=1)])
def test_limits_of_sites_do_not_apply_to_start_payloads(fed: Fed, crawl: object) -> None:
    """Limits apply to requests, and a start payload is not a request yet."""
    worker = HandWorker(fed, "worker", crawl)  # type: ignore[arg-type]
    fed.feed(b"a", b"b", b"c")
    claimed = claim(worker, 3).leases
    assert len(claimed) == 3
    assert all(lease.send_at is None for lease in claimed)
    worker.exchange(*(Release(lease.entry_id) for lease in claimed), seeding=3)
    assert len(worker.exchange(want=3, seeding=3).leases) == 3
    fed.state()


def test_a_key_of_another_type_stops_neither_the_crawl_nor_the_other_key(
    fed: Fed, claimer: HandWorker
) -> None:
    """The answer names the key, its type and the right type. The crawl and the other key are not affected."""
    fed.redis.set(fed.names[0], "mine")
    fed.feed(b"a", key=1)
    claimer.exchange(put(1), seeding=3)
    receipt = claim(claimer, 5)
    assert {lease.payload for lease in receipt.leases} == {b"payload", MARK + b"a"}
    assert fed.names[0] in receipt.wrong_key
    assert f"is a string, not a {fed.kind}" in receipt.wrong_key
    assert fed.redis.get(fed.names[0]) == b"mine"


def test_a_large_payload_ends_the_claims_of_an_exchange(fed: Fed, claimer: HandWorker) -> None:
    """The leases of one exchange are also bounded in bytes."""
    fed.feed(*(b"%d" % n + b"x" * 3_000_000 for n in range(3)))
    assert len(claim(claimer, 3).leases) == 2
    assert fed.left() == 1


def test_a_start_payload_does_not_count_as_a_page(fed: Fed, claimer: HandWorker) -> None:
    """The requests that are made from a payload count as done, but the payload itself does not."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    assert claimer.exchange(Ack(lease.entry_id), seeding=3).census.done == 0


@pytest.mark.parametrize("end", [Fail, Bury])
def test_a_retried_start_payload_does_not_count_as_a_page(
    fed: Fed, claimer: HandWorker, end: Callable[..., Move]
) -> None:
    """A retry puts the payload back into a run that has not claimed any payload yet."""
    fed.feed(b"a")
    (lease,) = claim(claimer, 1).leases
    claimer.exchange(end(lease.entry_id, "reason", *(["label"] if end is Fail else [])))
    claimer.leave()
    overview = peek(fed.redis, fed.crawl)
    retry(fed.redis, fed.crawl, overview, failed=lambda record: True, dead=lambda record: True)
    again = HandWorker(fed, "again")
    (lease,) = again.exchange(want=1).leases
    assert again.exchange(Ack(lease.entry_id)).census.done == 0


def test_a_claimed_start_payload_opens_a_finished_run(fed: Fed) -> None:
    """The claim opens the run, so the later ack is accepted. A duplicate put does not open a run."""
    worker = HandWorker(fed, "worker")
    worker.exchange(put(1), want=1)
    assert worker.exchange(Ack(b"%012d" % 1)).status is Status.FINISHED
    fed.feed(b"late")
    receipt = worker.exchange(put(1), want=1, terms=claiming(fed))
    assert (receipt.status, payloads(receipt.leases)) == (Status.OK, [b"late"])
    receipt = worker.exchange(Ack(receipt.leases[0].entry_id))
    assert (receipt.status, receipt.applied) == (Status.FINISHED, True)
