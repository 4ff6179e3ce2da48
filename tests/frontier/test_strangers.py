"""What somebody else has written into a crawl's own keys: it is looked at, and deleted, all the same."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin.backlog import sizes, upcoming
from scrapy_dq.frontier.model import Audited, Bury, Status
from support.live_frontier import HandWorker, LiveFrontier, ack, entry_id, numbers, put, puts

NO_TEXT = b"\xff\x1b[2J"


def test_a_member_whose_id_is_no_text(live: LiveFrontier, worker: HandWorker) -> None:
    """It is shown, fenced and drained, and deleted with the crawl; the others' hearts are heard."""
    live.redis.sadd(live.key("members"), NO_TEXT)
    live.redis.hset(live.key("beats"), NO_TEXT, "no number")
    (name,) = {member.worker_id for member in peek(live.redis, live.crawl).members} - {"worker"}
    assert live.call("beats", "worker", worker.epoch) == {"worker": 1, name: 0}
    assert live.call("flush", ["worker"])[0] == name
    worker.fence(name)
    worker.drain(name)
    assert live.members() == {"worker"}
    live.redis.sadd(live.key("members"), NO_TEXT)
    assert live.call("flush", ["worker", name])[0] == ""
    assert live.dump() == {}


@pytest.mark.parametrize("field", ["phase", "hold", "epoch", "run", "counts", "limiting", "told"])
def test_fields_that_are_no_text(live: LiveFrontier, worker: HandWorker, field: str) -> None:
    """Nothing of it reaches a terminal as it is; the crawl can be deleted."""
    live.redis.hset(live.key("meta"), field, NO_TEXT)
    overview = peek(live.redis, live.crawl)
    assert overview.phase == "open"
    assert [member.worker_id for member in overview.members] == ["worker"]
    assert live.call("flush", ["worker"])[0] == ""
    assert live.dump() == {}


def test_bands_that_are_none(live: LiveFrontier, worker: HandWorker) -> None:
    """They are counted as nothing, and are no lists."""
    worker.exchange(put(1, partition=b"a"))
    live.redis.hset(live.key("bands"), mapping={b"x": b"short", b"y": b""})
    live.redis.zadd(live.key("more_bands"), {b"a\0short": 0, b"no zero": 0})
    assert [(size.partition, size.waiting) for size in sizes(live.redis, live.crawl, 5).largest] == [("a", 1)]
    assert live.call("flush", ["worker"])[0] == ""
    assert live.dump() == {}


@pytest.mark.parametrize("element", [b"", b"short", b"longer than a turn"])
def test_an_element_that_is_too_short(live: LiveFrontier, worker: HandWorker, element: bytes) -> None:
    """It is leased as an entry that nobody can read, comes back as one, and holds up no other."""
    worker.exchange(*puts(b"a", 1))
    live.redis.rpush(live.key("backlog:0:a"), element)
    worker.exchange(*puts(b"a", 1, begin=5))
    assert len(upcoming(live.redis, live.crawl, 9)) == 3
    leases = worker.exchange(want=2).leases
    odd = leases[1]
    assert (odd.entry_id, odd.payload) == (element[8:].ljust(12, b"\0"), b"")
    worker.leave()
    again = HandWorker(live, "again")
    found = [lease.entry_id for _ in range(3) for lease in again.exchange(want=9).leases]
    assert sorted(found) == sorted([entry_id(0), odd.entry_id, entry_id(5)])


@pytest.mark.parametrize(
    "counts", [b"", b"none", b"1 -5 -5 0 0 0 0 0 0 0 1 0", b"9" * 400 + b" 0 0 0 0 0 0 0 0 0 0 0"]
)
def test_spoilt_counts_hold_up_no_crawl(live: LiveFrontier, worker: HandWorker, counts: bytes) -> None:
    """What waits is leased all the same; after an audit they are right again, and the crawl ends."""
    worker.exchange(*puts(b"a", 3))
    live.redis.hset(live.key("meta"), "counts", counts)
    receipt = worker.exchange(want=9)
    assert numbers(receipt) == [0, 1, 2]
    receipt = worker.exchange(*(ack(n) for n in range(3)))
    if receipt.damage:
        assert live.call("audit", worker.epoch, worker.run, [], []) == Audited()
        receipt = worker.exchange()
    assert (receipt.status, receipt.damage) == (Status.FINISHED, "")


@pytest.mark.parametrize("member", [b"", b"short", b"longer than a rank and its turn"])
@pytest.mark.parametrize("where", ["returned", "quarantine", "delayed"])
def test_a_member_that_is_too_short(
    live: LiveFrontier, worker: HandWorker, where: str, member: bytes
) -> None:
    """It is leased as an entry that nobody can read, and holds up no other."""
    worker.exchange(*puts(b"a", 3))
    live.redis.zadd(live.key(where), {member if where == "delayed" else b"a\0" + member: 0})
    assert len(upcoming(live.redis, live.crawl, 9)) == 4
    found = [lease for _ in range(3) for lease in worker.exchange(want=9).leases]
    odd = {lease.entry_id for lease in found} - {entry_id(n) for n in range(3)}
    assert (len(found), len(odd)) == (4, 1)
    assert worker.exchange(*(Bury(lease.entry_id, "") for lease in found)).census.dead == 4
    assert worker.exchange().status is Status.FINISHED


@pytest.mark.parametrize("how", ["drain", "rejoin", "leave"])
@pytest.mark.parametrize("name", [b"short", b"x" * 12])
def test_a_lease_that_is_none(live: LiveFrontier, worker: HandWorker, how: str, name: bytes) -> None:
    """It is deleted with its worker; what this held comes back, and is served."""
    worker.exchange(*puts(b"a", 3))
    worker.take(3)
    live.redis.hset(live.key("in-flight:worker"), name, "no record")
    assert live.call("limit", b"b", concurrency=1)
    other = HandWorker(live, "other")
    if how == "drain":
        other.reclaim("worker")
    elif how == "rejoin":
        worker.rejoin("again", held=[])
        worker.leave()
    else:
        worker.leave()
    found = []
    while taken := other.take(3):
        found += taken
        other.exchange(*(ack(n) for n in taken))
    assert found == [0, 1, 2]
    assert other.exchange().status is Status.FINISHED
