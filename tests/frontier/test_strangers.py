"""What somebody else has written into a crawl's own keys: it is read, and deleted, nevertheless."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from scrapy_dq.crew.redis_access import run_name_for
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin.backlog import sizes, upcoming
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import (
    MAX_EXCHANGE_BYTES,
    MAX_PARTITION_BYTES,
    Ack,
    Admission,
    Audited,
    Bury,
    FrontierRefused,
    Hold,
    Lease,
    Order,
    Release,
    Seeding,
    Seen,
    Sent,
    Status,
)
from scrapy_dq.frontier.scan import Found
from scrapy_dq.frontier.worker.audit import audit
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.protocol import NONCE_BYTES, Exchange, Rejoin, WorkerProtocol
from scrapy_dq.settings import SETTINGS, Config
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    entry_id,
    limited,
    numbers,
    put,
    puts,
)
from support.redis_server import RedisServer
from support.stored_counts import change_count

NO_TEXT = b"\xff\x1b[2J"


def test_a_member_whose_id_is_not_text(live: LiveFrontier, worker: HandWorker) -> None:
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


def test_heartbeats_of_no_member(live: LiveFrontier, worker: HandWorker) -> None:
    """They are not answered, and removed some at a time; a member without one gets it nevertheless."""
    HandWorker(live, "other")
    live.redis.hdel(live.key("beats"), "other")
    live.redis.hset(live.key("beats"), "nobody", 0)
    assert live.call("beats", "worker", worker.epoch) == {"worker": 1, "other": 0}
    live.redis.hset(live.key("beats"), mapping={b"%d" % n: 0 for n in range(5000)})
    sizes = []
    while not sizes or sizes[-1] > 2:
        assert set(live.call("beats", "worker", worker.epoch)) == {"worker", "other"}
        sizes.append(live.redis.hlen(live.key("beats")))
        assert len(sizes) < 20
    assert sizes[0] > 3000
    assert set(live.redis.hkeys(live.key("beats"))) == {b"worker", b"other"}
    live.redis.sadd(live.key("members"), *range(20_000))
    assert live.call("beats", "worker", worker.epoch) == {}


@pytest.mark.parametrize("field", ["phase", "hold", "epoch", "run", "counts", "limiting", "told"])
def test_fields_that_are_not_text(live: LiveFrontier, worker: HandWorker, field: str) -> None:
    """Nothing of it reaches a terminal as it is; the crawl can be deleted."""
    live.redis.hset(live.key("meta"), field, NO_TEXT)
    overview = peek(live.redis, live.crawl)
    assert overview.phase == "open"
    assert [member.worker_id for member in overview.members] == ["worker"]
    assert live.call("flush", ["worker"])[0] == ""
    assert live.dump() == {}


def test_invalid_bands(live: LiveFrontier, worker: HandWorker) -> None:
    """They count as nothing, and are not lists."""
    worker.exchange(put(1, partition=b"a"))
    live.redis.hset(live.key("bands"), mapping={b"x": b"short", b"y": b""})
    live.redis.zadd(live.key("more_bands"), {b"a\0short": 0, b"no zero": 0})
    assert [(size.partition, size.waiting) for size in sizes(live.redis, live.crawl, 5).largest] == [("a", 1)]
    assert live.call("flush", ["worker"])[0] == ""
    assert live.dump() == {}


@pytest.mark.parametrize("element", [b"", b"short", b"longer than a turn"])
def test_an_element_that_is_too_short(live: LiveFrontier, worker: HandWorker, element: bytes) -> None:
    """It is leased as an unreadable entry, returned as one, and delays no other."""
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


MIB = 1024 * 1024


def test_an_entry_of_the_largest_size_is_leased_whole(live: LiveFrontier, worker: HandWorker) -> None:
    """Nothing that a worker may store is cut (DQ_MAX_ENTRY_BYTES, and a signature)."""
    [setting] = [setting for setting in SETTINGS if setting.name == "DQ_MAX_ENTRY_BYTES"]
    assert setting.high is not None
    payload = b"x" * (int(setting.high) + 64)
    long = b"p" * MAX_PARTITION_BYTES
    worker.exchange(put(1, payload=payload, partition=long))
    [lease] = worker.exchange(want=1).leases
    assert (lease.partition, lease.payload) == (long, payload)


def test_of_an_endless_entry_the_beginning_is_leased(live: LiveFrontier, worker: HandWorker) -> None:
    """Sending it might exceed every timeout, and be repeated forever; also after a reclaim."""
    worker.exchange(*puts(b"a", 1))
    live.redis.rpush(live.key("backlog:0:a"), b"t" * 8 + entry_id(7) + b"x" * 16 * MIB)
    assert max(len(entry.payload) for entry in upcoming(live.redis, live.crawl, 9)) < 5 * MIB
    assert [lease.entry_id for lease in worker.exchange(want=1).leases] == [entry_id(0)]
    [lease] = worker.exchange(want=1).leases
    assert 4 * MIB < len(lease.payload) < 5 * MIB
    worker.exchange(ack(0), Bury(entry_id(7), "too large"))
    [size] = [len(record) for record in live.redis.hvals(live.key("dead"))]
    assert size < 5 * MIB


@pytest.mark.parametrize("run", [b"none", b"-1", b"1.5", b"nan", b"9" * 400])
def test_a_run_that_is_not_a_number_delays_nobody(live: LiveFrontier, worker: HandWorker, run: bytes) -> None:
    live.redis.hset(live.key("meta"), "run", run)
    later = HandWorker(live, "later")
    assert later.exchange(put(1), want=1).leases[0].entry_id == entry_id(1)


@pytest.mark.parametrize(
    "counts", [b"", b"none", b"1 -5 -5 0 0 0 0 0 0 0 1 0", b"9" * 400 + b" 0 0 0 0 0 0 0 0 0 0 0"]
)
def test_spoilt_counts_delay_no_crawl(live: LiveFrontier, worker: HandWorker, counts: bytes) -> None:
    """What waits is leased nevertheless; after an audit they are right again, and the crawl ends."""
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
    """It is leased as an entry that nobody can read, and delays no other."""
    worker.exchange(*puts(b"a", 3))
    live.redis.zadd(live.key(where), {member if where == "delayed" else b"a\0" + member: 0})
    assert len(upcoming(live.redis, live.crawl, 9)) == 4
    found = [lease for _ in range(3) for lease in worker.exchange(want=9).leases]
    odd = {lease.entry_id for lease in found} - {entry_id(n) for n in range(3)}
    assert (len(found), len(odd)) == (4, 1)
    assert worker.exchange(*(Bury(lease.entry_id, "") for lease in found)).census.dead == 4
    assert worker.exchange().status is Status.FINISHED


@pytest.mark.parametrize("record", [b"", b"short", b"long, but without the byte that ends a partition"])
def test_a_corrupted_lease_delays_no_rejoin(live: LiveFrontier, worker: HandWorker, record: bytes) -> None:
    """It is lost; its worker continues with the others."""
    worker.exchange(*puts(b"a", 3))
    worker.take(3)
    live.redis.hset(live.key("in-flight:worker"), entry_id(1), record)
    worker.rejoin("again")
    assert worker.held == {entry_id(0), entry_id(2)}
    worker.exchange(ack(0), ack(2))


SPOILT: dict[str, Callable[[LiveFrontier], Any]] = {
    "bands": lambda live: live.redis.hset(live.key("bands"), b"b", b"short"),
    "more_bands": lambda live: live.redis.zadd(live.key("more_bands"), {b"b\0x": 0, b"a\0x": 0}),
}


@pytest.mark.parametrize("key", SPOILT)
def test_what_leads_to_entries_is_spoilt(live: LiveFrontier, key: str) -> None:
    """What waits in other partitions, and in this one, is served nevertheless."""
    worker = HandWorker(live, "worker", limited(concurrency=5))
    worker.exchange(*puts(b"a", 2))
    live.redis.zadd(live.key("rotation"), {b"b": 0})
    SPOILT[key](live)
    found: list[int] = []
    for _ in range(4):
        taken = worker.take(2)
        found += taken
        worker.exchange(*(ack(n) for n in taken))
    assert sorted(found) == [0, 1]


@pytest.mark.parametrize("how", ["drain", "rejoin", "leave"])
@pytest.mark.parametrize("name", [b"short", b"x" * 12])
def test_an_invalid_lease(live: LiveFrontier, worker: HandWorker, how: str, name: bytes) -> None:
    """It is deleted with its worker, whose leases are reclaimed and served."""
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


@pytest.mark.parametrize("remembered", [b"t" + entry_id(0), b"t", b"i" + entry_id(0)[:5], b"?" * 40])
def test_a_corrupted_stored_answer_delays_no_repeat(
    live: LiveFrontier, worker: HandWorker, remembered: bytes
) -> None:
    """A repeat brings what can be read of it; what else was granted comes back with a rejoin."""
    worker.exchange(*puts(b"a", 2))
    assert numbers(worker.exchange(want=2)) == [0, 1]
    live.redis.hset(live.key("worker:worker"), "leases", remembered)
    assert len(worker.send(worker.last).leases) < 2
    worker.rejoin("again", held=[])
    assert sorted(worker.take(2)) == [0, 1]


NONCE = bytes(NONCE_BYTES)
OVERWRITTEN: dict[str, Callable[[LiveFrontier], Any]] = {
    "positions that are no numbers": lambda live: live.redis.hset(
        live.key("worker:worker"), mapping={"last_seq": 3, "nonce": NONCE, "dropped": "x"}
    ),
    "positions beyond the moves": lambda live: live.redis.hset(
        live.key("worker:worker"), mapping={"last_seq": 3, "nonce": NONCE, "dropped": "7,~900"}
    ),
    "a record without its zero byte": lambda live: (
        live.redis.hset(
            live.key("worker:worker"), mapping={"last_seq": 3, "nonce": NONCE, "leases": b"i" + entry_id(0)}
        ),
        live.redis.hset(live.key("in-flight:worker"), entry_id(0), "no record of ours"),
    ),
}


@pytest.mark.parametrize("what", OVERWRITTEN)
def test_an_answer_that_cannot_be_read_has_the_worker_register_again(
    live: LiveFrontier, worker: HandWorker, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sending the same bytes again would bring the same answer, for ever."""
    worker.exchange(*puts(b"a", 3), want=1)
    protocol = WorkerProtocol(
        live.frontier.name, Listener(), Outbox(), 10.0, new_id=iter(("worker", "again", "third")).__next__,
        random_bytes=bytes,
    )  # fmt: skip
    protocol.joined(worker.joined, 0.0)
    protocol.seq, protocol.seeding = 2, Seeding.DONE
    protocol.leases.grant(Lease(entry_id(0), 0, b"payload", b"a"))
    assert not exchanged(live, protocol, 0)
    OVERWRITTEN[what](live)
    exchanged(live, protocol, 1)
    assert protocol.id == "worker"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    exchanged(live, protocol, 1)
    assert protocol.id == "again"
    for _ in range(9):
        exchanged(live, protocol, 3)
    assert {1, 2} <= {int(id_) for id_ in protocol.leases.held()}


LAST_SEQ: dict[str, Callable[[int], int]] = {
    "the next number": lambda last: last + 1,
    "a large number": lambda last: 10**9,
    "the number before": lambda last: last - 1,
}


@pytest.mark.parametrize("change", LAST_SEQ.values(), ids=LAST_SEQ)
@pytest.mark.parametrize("finished", [False, True])
def test_a_number_that_somebody_wrote_passes_no_exchange_off_as_applied(
    live: LiveFrontier, change: Callable[[int], int], finished: bool
) -> None:
    """The worker rejoins, and stores again what it has logged or not stored yet: nothing is lost."""
    stored = HandWorker(live, "stored")
    HandWorker(live, "first")
    protocol = WorkerProtocol(
        live.frontier.name, Listener(), Outbox(), 10.0, new_id=iter(("first", "again", "third")).__next__,
        random_bytes=os.urandom,
    )  # fmt: skip
    protocol.joined(stored.joined, 0.0)
    protocol.seeding = Seeding.DONE
    if not finished:
        protocol.outbox.append(put(0))
    exchanged(live, protocol, 0)
    if finished:
        assert stored.exchange().status is Status.FINISHED
    else:
        stored.exchange()
    last = int(live.redis.hget(live.key("worker:first"), "last_seq") or 0)
    live.redis.hset(live.key("worker:first"), "last_seq", change(last))
    for n in range(1, 101):
        protocol.outbox.append(put(n))
    for _ in range(4):
        exchanged(live, protocol, 0)
    assert (protocol.id, len(protocol.outbox), protocol.over) == ("again", 0, False)
    assert live.count("waiting") == (100 if finished else 101)
    assert sorted(stored.take(101)) == [*range(finished, 101)]


def test_another_exchange_with_the_number_of_the_last_one_is_no_repeat_of_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Also after one that found the run finished; the repeat itself gets the stored answer."""
    worker.exchange(put(1), seeding=1)
    other.exchange()
    before = live.dump()
    assert worker.send(worker.last).applied
    for nonce in (b"", b"forged", bytes(NONCE_BYTES)):
        assert worker.send(worker.last | {"nonce": nonce}).status is Status.RESYNC
    assert live.dump() == before
    worker.exchange(want=1)
    worker.exchange(ack(1))
    assert worker.exchange().status is Status.FINISHED
    assert worker.send(worker.last).status is Status.FINISHED
    assert worker.send(worker.last | {"nonce": b"forged"}).status is Status.RESYNC


REPEATED: dict[str, tuple[int, int, int]] = {
    "one id, many times": (1, 15_000, 40_000),
    "many ids": (3_000, 3_000, 100),
    "many bytes": (20, 20, 1_000_000),
}


@pytest.mark.parametrize(("ids", "times", "size"), REPEATED.values(), ids=list(REPEATED))
@pytest.mark.parametrize("timed", [False, True])
def test_a_repeat_brings_no_more_than_an_exchange(
    live: LiveFrontier, worker: HandWorker, ids: int, times: int, size: int, timed: bool
) -> None:
    """Whatever somebody has written into the stored answer: one record of 40 kB became 600 MB."""
    worker.exchange(want=9, seeding=1)
    record = bytes(9) + b"a\0" + bytes(8)
    named = [entry_id(n) for n in range(ids)]
    live.redis.hset(
        live.key("in-flight:worker"),
        mapping={each: record + each + b"x" * size for each in named},  # type: ignore[misc]
    )
    answer = b"".join(each + bytes(8) * timed for each in named) * (times // ids)
    live.redis.hset(live.key("worker:worker"), "leases", (b"t" if timed else b"i") + answer)
    leases = worker.send(worker.last).leases
    assert 0 < len(leases) <= 18  # 9 entries, and 9 start payloads
    assert len(leases) == len({lease.entry_id for lease in leases})
    assert sum(len(lease.payload) for lease in leases) <= MAX_EXCHANGE_BYTES + size


def test_a_repeat_brings_all_that_a_large_exchange_has_brought(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """Its limits are those of the exchange itself."""
    worker.exchange(*(put(n, payload=b"x" * 300_000) for n in range(14)))
    worker.exchange(*(put(n) for n in range(14, 1_014)))
    first = worker.exchange(want=1_000)
    assert 10 < len(first.leases) < 20
    assert worker.send(worker.last).leases == first.leases
    worker.exchange(*(ack(n) for n in numbers(first)))
    rest = worker.exchange(want=1_000)
    assert len(rest.leases) == 1_000
    assert worker.send(worker.last).leases == rest.leases


def exchanged(live: LiveFrontier, protocol: WorkerProtocol, want: int) -> bool:
    """Make the protocol's next call; return whether it brought leases."""
    call = protocol.compose(0.0, want)
    if isinstance(call, Rejoin):
        kept = (call.old_id, call.epoch, call.run, call.held, call.parentless, call.seeding)
        protocol.rejoined(live.call("rejoin", call.new_id, {}, *kept, IDENTITY))
        return False
    assert isinstance(call, Exchange)
    receipt = live.call(
        "exchange", call.worker_id, call.epoch, call.run, call.seq, call.want, call.seeding, call.held,
        call.moves, call.terms, call.nonce,
    )  # fmt: skip
    protocol.received(receipt, 0.0)
    return bool(receipt.leases)


def test_a_stored_answer_that_was_deleted_delays_no_repeat(live: LiveFrontier, worker: HandWorker) -> None:
    worker.exchange(*puts(b"a", 1), want=1)
    live.redis.hdel(live.key("worker:worker"), "leases", "dropped")
    assert worker.send(worker.last).applied


@pytest.mark.parametrize("number", [b"none", b"nan", b""])
def test_an_exchange_number_that_is_none_delays_no_rejoin(
    live: LiveFrontier, worker: HandWorker, number: bytes
) -> None:
    """The repeat of a rejoin is answered in full."""
    worker.exchange(*puts(b"a", 1), want=1)
    worker.rejoin("again")
    live.redis.hset(live.key("worker:again"), "came_from", number)
    worker.worker_id = "worker"
    assert worker.rejoin("again").owned == {entry_id(0)}


@pytest.mark.parametrize("since", [b"none", b"nan", b"-5", b"1e999", b"9" * 15, b"9" * 400])
def test_a_time_of_expiry_that_is_none_delays_no_exchange(
    open_frontier: Callable[..., LiveFrontier], since: bytes
) -> None:
    """Nothing expires then."""
    live = open_frontier(Order.FIFO, seen=Seen.EXPIRING)
    worker = HandWorker(live, "worker", replace(IDENTITY, seen_ttl_s=1000.0))
    live.redis.hset(live.key("meta"), "seen_since", since)
    seen = put(1, admission=Admission.SEEN, token=b"token")
    assert worker.exchange(seen, want=1).dropped == ()
    assert worker.exchange(seen).dropped == (0,)


def test_a_hold_without_a_word_is_told_nevertheless(live: LiveFrontier, worker: HandWorker) -> None:
    live.redis.hset(live.key("meta"), "hold", "paused")
    receipt = worker.exchange(put(1), want=1)
    assert receipt.leases == ()
    assert receipt.words is not None
    assert receipt.words.hold is Hold.PAUSED


@pytest.mark.parametrize("hold", [NO_TEXT, b"none that we write"])
def test_a_hold_that_we_never_write_is_a_pause(live: LiveFrontier, worker: HandWorker, hold: bytes) -> None:
    """No worker gets a lease, and all learn why; it can be resumed."""
    worker.exchange(*puts(b"a", 1))
    steer(live.redis, live.crawl, Word.PAUSE)
    live.redis.hset(live.key("meta"), "hold", hold)
    receipt = worker.exchange(want=1)
    assert (receipt.leases, receipt.words.hold) == ((), Hold.PAUSED)
    assert steer(live.redis, live.crawl, Word.COMPLETE) is Hold.PAUSED
    steer(live.redis, live.crawl, Word.RESUME)
    assert numbers(worker.exchange(want=1)) == [0]


def test_more_members_than_any_crawl_has_are_refused(live: LiveFrontier, worker: HandWorker) -> None:
    """Each look goes through them. With their key deleted the crawl continues; nothing that waits is lost."""
    worker.exchange(*puts(b"a", 2))
    worker.take(1)

    def crowd(count: int) -> None:
        live.redis.sadd(live.key("members"), *(f"stranger-{n}" for n in range(count)))

    crowd(10_000)
    with pytest.raises(FrontierRefused, match=r"at most 10,000 .* \(DEL\)"):
        HandWorker(live, "other")
    crowd(20_000)
    for look in (
        lambda: peek(live.redis, live.crawl),
        lambda: live.call("flush", ["worker"]),
        worker.exchange,
    ):
        with pytest.raises(FrontierRefused, match=r"20,001 workers"):
            look()
    live.redis.delete(live.key("members"))
    other = HandWorker(live, "other")
    found = other.take(1)
    live.call("audit", other.epoch, other.run, [], [])
    other.exchange(ack(1))
    assert found == [1]


@pytest.mark.parametrize("name", [b"x" * 200_000, b"a\0b", b"a\nb"])
def test_a_run_name_that_nobody_would_choose_is_not_used(
    live: LiveFrontier, worker: HandWorker, name: bytes
) -> None:
    """A crew puts it into the command lines of its workers."""
    config = Config(live.crawl)
    live.redis.hset(live.key("meta"), "run_name", "nightly")
    assert run_name_for(live.redis, config) == "nightly"
    live.redis.hset(live.key("meta"), "run_name", name)
    assert run_name_for(live.redis, config).startswith("crew-")


def test_crews_that_begin_at_once_have_one_name_for_their_run(live: LiveFrontier) -> None:
    """A worker of the second, restarted as the run ends, finds it finished; a later crew begins the next."""
    config = Config(live.crawl)
    for number in range(3):
        first, second = run_name_for(live.redis, config), run_name_for(live.redis, config)
        named = replace(IDENTITY, run_name=second)
        worker = HandWorker(live, f"first-{number}", replace(IDENTITY, run_name=first))
        assert worker.run == number
        assert worker.exchange().status is Status.FINISHED
        late = live.call("join", f"second-{number}", {"host": "h"}, "epoch", named)
        assert (late.status, late.run) == (Status.FINISHED, number)
    HandWorker(live, "unnamed")
    assert run_name_for(live.redis, config) == run_name_for(live.redis, config)


@pytest.mark.parametrize("where", ["returned", "quarantine"])
def test_a_member_that_is_not_an_entry_keeps_no_run_open(
    live: LiveFrontier, worker: HandWorker, where: str
) -> None:
    """An audit removes what nobody would ever lease."""
    live.redis.zadd(live.key(where), {b"x": 0})
    worker.exchange(put(1), want=1)
    receipt = worker.exchange(ack(1))
    assert (receipt.status, receipt.damage) == (Status.OK, "entries")
    live.call("audit", worker.epoch, worker.run, [], [])
    assert not live.redis.exists(live.key(where))
    assert worker.exchange().status is Status.FINISHED


BAND = bytes(7)
KEEPS_OPEN: dict[str, tuple[str, dict[bytes, Any]]] = {
    "a band that is too short": ("bands", {b"ghost": b"x"}),
    "a band without a list": ("bands", {b"ghost": BAND + b"\1"}),
    "two bands without a list": ("more_bands", {b"a\0" + BAND + b"\1": 0, b"a\0" + BAND + b"\2": 0}),
    "a second band that is too short": ("more_bands", {b"a\0x": 0, b"none": 0}),
    "a second band out of order": ("more_bands", {b"b\0" + BAND + b"\1": 0.5, b"a\0" + BAND + b"\2": "-inf"}),
    "a stint of nobody's": ("unsent", {b"a": b"anything", b"b": b"\0" * 12}),
    "leases of nobody's": ("busy", {b"a": 99, b"b": b"5"}),
    "a rest without a reason": ("resting", {b"a": 1e300, b"b": "+inf"}),
    "an entry out of order": ("quarantine", {b"a\0" + bytes(16) + entry_id(7) + b"\1": 0.5}),
    "entries out of order": (
        "returned",
        {b"c\0" + bytes(16) + entry_id(7) + b"\1": "-inf", b"b\0" + bytes(16) + entry_id(8) + b"\1": 5},
    ),
}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("where", "written"), KEEPS_OPEN.values(), ids=list(KEEPS_OPEN))
def test_what_nobody_of_ours_wrote_keeps_no_run_open(
    live: LiveFrontier, where: str, written: dict[bytes, Any], begun: bool
) -> None:
    """What waits is served, an audit removes the rest, and the run ends."""
    worker = HandWorker(live, "worker", limited(concurrency=3))
    if begun:
        worker.exchange(*puts(b"a", 3))
    if where in ("bands", "unsent", "busy"):
        live.redis.hset(live.key(where), mapping=written)
    else:
        live.redis.zadd(live.key(where), written)
    if where == "resting":
        live.redis.delete(live.key("rotation"))
    if not begun:
        worker.exchange(*puts(b"a", 3))
    found: list[int] = []
    for _ in range(12):
        receipt = worker.exchange(want=9)
        if receipt.damage:
            live.call("audit", worker.epoch, worker.run, [], [])
        found += numbers(receipt)
        if worker.exchange(*(ack(lease) for lease in numbers(receipt))).status is Status.FINISHED:
            break
    else:
        pytest.fail(f"the run does not end: {live.dump()}")
    assert {0, 1, 2} <= set(found)


@pytest.mark.parametrize("where", ["bands", "returned", "quarantine"])
@pytest.mark.parametrize(("count", "by"), [("in_flight", 1), ("waiting", -1)])
def test_what_is_no_entry_is_found_though_the_counts_are_wrong_too(
    live: LiveFrontier, worker: HandWorker, where: str, count: str, by: int
) -> None:
    """No worker has leases: nobody would ever lease what stands there, and the run would never end."""
    worker.exchange(put(1), put(2))
    if where == "bands":
        live.redis.hset(live.key(where), "zz", "x")
    else:
        live.redis.zadd(live.key(where), {"x": 0})
    live.change_count(count, by)
    damage = set()
    for _ in range(8):
        receipt = worker.exchange(*(ack(int(lease)) for lease in sorted(worker.held)), want=9)
        if receipt.damage:
            damage.add(receipt.damage)
            live.call("audit", worker.epoch, worker.run, [], [])
        if receipt.status is Status.FINISHED:
            break
    assert (receipt.status, damage) == (Status.FINISHED, {"entries"})


def test_records_of_a_wrong_type_are_named(live: LiveFrontier, worker: HandWorker) -> None:
    """By the exchange, which reads them first; an overview shows the others."""
    HandWorker(live, "other")
    live.redis.delete(live.key("worker:worker"))
    live.redis.set(live.key("worker:worker"), "text")
    with pytest.raises(FrontierRefused, match="worker:worker' is a string, not a hash"):
        worker.exchange(put(1))
    live.redis.set(live.key("in-flight:other"), "text")
    assert {member.worker_id for member in peek(live.redis, live.crawl).members} == {"worker", "other"}
    live.redis.delete(live.key("meta"))
    live.redis.set(live.key("meta"), "text")
    with pytest.raises(FrontierRefused, match="meta' is a string, not a hash"):
        worker.exchange(put(1))


def test_a_sequence_that_is_no_number_delays_no_rejoin(live: LiveFrontier, worker: HandWorker) -> None:
    """It counts as none."""
    worker.exchange(*puts(b"a", 2), want=1)
    live.redis.hset(live.key("worker:worker"), "last_seq", b"\0\xff")
    assert worker.exchange().status is Status.RESYNC
    worker.rejoin("again")
    assert worker.held == {entry_id(0)}
    assert numbers(worker.exchange(want=2)) == [1]


def test_a_conversion_that_no_script_began_stops_no_worker(live: LiveFrontier, worker: HandWorker) -> None:
    """A compact seen can never be converted; what is stored is the kind that its type says."""
    worker.exchange(put(1, admission=Admission.SEEN), want=1)
    live.redis.hset(live.key("meta"), "seen_kind", "compact>exact")
    assert worker.exchange(put(1, admission=Admission.SEEN)).dropped == (0,)
    with pytest.raises(FrontierRefused, match="SCHEDULER_FLUSH_ON_START"):
        HandWorker(live, "other")


@pytest.mark.parametrize("crawl", [IDENTITY, limited(concurrency=50)])
@pytest.mark.parametrize("lists", ["of another type", "missing", "without a band", "to be served later"])
def test_partitions_without_entries_at_the_head_of_the_rotation(
    live: LiveFrontier, crawl: Identity, lists: str
) -> None:
    """They leave the rotation, many with each exchange: what waits is served, and the run ends."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(*puts(b"genuine", 3))
    with live.redis.pipeline(transaction=False) as pipeline:
        for n in range(3000):
            if lists == "of another type":
                pipeline.set(live.key(f"backlog:0:e{n}"), "")
            if lists in ("of another type", "missing"):
                pipeline.hset(live.key("bands"), f"e{n}", BIASED_ZERO)
            if lists == "to be served later":
                pipeline.zadd(live.key("earliest"), {f"e{n}": 9e15})
            pipeline.zadd(live.key("rotation"), {f"e{n}": "-inf"})
        pipeline.execute()
    found: list[int] = []
    wrong = set[str]()
    for _ in range(12):
        receipt = worker.exchange(want=9)
        found += numbers(receipt)
        wrong |= {receipt.wrong_key} - {""}
        if len(found) == 3:
            break
        live.advance(1)
    assert sorted(found) == [0, 1, 2]
    assert all("is a string, not a list" in words for words in wrong)
    assert bool(wrong) == (lists == "of another type")
    end(live, worker, found)
    assert live.call("census").gone == 0


BIASED_ZERO = (1 << 52).to_bytes(8, "big")
"""The band of rank 0."""


def end(live: LiveFrontier, worker: HandWorker, held: list[int]) -> None:
    """Settle what is held, audit as a worker does, and see to it that the run ends."""
    for _ in range(9):
        receipt = worker.exchange(*(ack(n) for n in held), want=9)
        held = numbers(receipt)
        if receipt.status is Status.FINISHED:
            return
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
    pytest.fail(f"the run does not end: {receipt}")


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("first", ["it is served", "another key is missed"])
def test_a_list_that_was_replaced_is_gone(
    open_frontier: Callable[..., LiveFrontier], more: bool, first: str
) -> None:
    """Its key is reported, what is missing is recorded, and the run ends as damaged: as if it was deleted."""
    live = open_frontier(Order.PRIORITY_FIFO)
    worker = HandWorker(live, "worker")
    worker.exchange(*puts(b"a", 3), *puts(b"b", 2, 10), *([put(20, -1, partition=b"a")] if more else []))
    live.redis.delete(live.key("backlog:0:a"))
    live.redis.set(live.key("backlog:0:a"), "not ours")
    if first == "it is served":
        receipt = worker.exchange(want=9)
        assert "backlog:0:a' is a string, not a list" in receipt.wrong_key
        assert receipt.damage == "backlog"
        assert sorted(numbers(receipt)) == [10, 11]  # what else waits in a has its turn again
        end(live, worker, numbers(receipt))
    else:
        live.run(audit(live.frontier, worker.epoch, worker.run))
        end(live, worker, [])
    assert live.call("census").gone == 3
    assert live.redis.get(live.key("backlog:0:a")) == b"not ours"


@pytest.mark.parametrize("run", [b"9" * 30, b"%d" % 2**53, b"%d" % 2**52])
def test_each_run_is_another_whatever_its_number_was(
    live: LiveFrontier, worker: HandWorker, run: bytes
) -> None:
    """Feeds are named by epoch and run: with the same ones, a new run appends to the feeds of the last."""
    live.redis.hset(live.key("meta"), "run", run)
    assert worker.exchange().status is Status.RESYNC
    runs = []
    for n in range(4):
        later = HandWorker(live, f"later-{n}")
        runs.append((later.epoch, later.run))
        later.exchange()
        if n == 0:
            worker.rejoin("again", run=worker.run)
            worker.exchange()
            worker.leave()
        assert later.exchange().status is Status.FINISHED
        later.leave()
    assert len(set(runs)) == 4
    assert [number for _, number in runs] == [2**52, 0, 1, 2]


@pytest.mark.parametrize("crawl", [limited(delay_s=0.001), limited(concurrency=2), limited(0.001, 2)])
@pytest.mark.parametrize("saturated", [False, True])
def test_a_rest_without_entries_hides_no_stall(live: LiveFrontier, crawl: Identity, saturated: bool) -> None:
    """A stint that never ends, or a turn that is gone, is found though another partition seems to rest."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(*puts(b"a", 3))
    live.redis.zadd(live.key("resting"), {b"q": "inf"})
    live.redis.zadd(live.key("earliest"), {b"q": "inf"})
    if saturated:
        live.redis.hset(live.key("unsent"), b"a", b"zzz")
    else:
        live.redis.delete(live.key("rotation"))
    found: list[int] = []
    for _ in range(20):
        live.advance(1)
        receipt = worker.exchange(*(ack(n) for n in found[-1:] if entry_id(n) in worker.held), want=1)
        found += numbers(receipt)
        if receipt.damage:
            live.run(audit(live.frontier, worker.epoch, worker.run))
            assert live.redis.zscore(live.key("resting"), b"q") is None
        if receipt.status is Status.FINISHED:
            break
    assert (found, receipt.status) == ([0, 1, 2], Status.FINISHED)


def test_leases_that_are_gone_are_found_while_a_partition_rests(live: LiveFrontier) -> None:
    """One that rests for good reason."""
    worker = HandWorker(live, "worker", limited(concurrency=1))
    worker.exchange(*puts(b"a", 2), *puts(b"b", 1, 10))
    live.limit(b"b", block_s=1000.0)
    live.redis.hset(live.key("unsent"), b"a", b"zzz")
    damage = [worker.exchange(want=1).damage for _ in range(2)]
    assert damage[-1] == "entries"
    live.run(audit(live.frontier, worker.epoch, worker.run))
    assert numbers(worker.exchange(want=1)) == [0]
    assert worker.exchange(want=1).damage == ""


@pytest.mark.parametrize("gone", [b"nan", b"1e300", b"-5", b"inf", b"none"])
def test_a_number_of_lost_requests_that_is_none(live: LiveFrontier, worker: HandWorker, gone: bytes) -> None:
    """It counts as 0, so that it hides none that is lost, and none is reported."""
    worker.exchange(*puts(b"a", 2), want=1)
    live.redis.hset(live.key("meta"), "gone", gone)
    assert worker.exchange().census.gone == peek(live.redis, live.crawl).census.gone == 0
    live.redis.delete(live.key("backlog:0:a"))
    end(live, worker, [0])
    assert live.call("census").gone == 1
    live.redis.hset(live.key("meta"), "gone", b"9" * 400)
    assert peek(live.redis, live.crawl).census.gone == 2**53


FORGED_ENTRIES = {
    "in a list": lambda live, entry: live.redis.lpush(live.key("backlog:0:a"), TURN + entry),
    "behind it": lambda live, entry: live.redis.rpush(live.key("backlog:0:a"), TURN + entry),
    "returned": lambda live, entry: live.redis.zadd(
        live.key("returned"), {b"a\0" + BIASED_ZERO + TURN + entry[:12] + b"\0" + entry[12:]: 0}
    ),
    "a suspect": lambda live, entry: live.redis.zadd(
        live.key("quarantine"), {b"a\0" + BIASED_ZERO + TURN + entry[:12] + b"\1" + entry[12:]: 0}
    ),
}
TURN = bytes(8)


@pytest.mark.parametrize("crawl", [IDENTITY, limited(delay_s=0.001), limited(concurrency=50)])
@pytest.mark.parametrize("where", FORGED_ENTRIES)
@pytest.mark.parametrize("want", [1, 9])
def test_an_entry_under_the_id_of_another_one_hides_it_not(
    live: LiveFrontier, crawl: Identity, where: str, want: int
) -> None:
    """Leased together, or while the other is in flight: each is settled by itself."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(put(0, payload=b"genuine", partition=b"a"), put(1, partition=b"a"))
    FORGED_ENTRIES[where](live, entry_id(0) + b"forged")
    payloads: list[bytes] = []
    for _ in range(9):
        receipt = worker.exchange(want=want)
        payloads += [lease.payload for lease in receipt.leases]
        worker.note(*(Sent(b"a", lease.entry_id, 0.0) for lease in receipt.leases))
        live.advance(1)
    assert sorted(payloads) == [b"forged", b"genuine", b"payload"]
    assert len(worker.held) == live.call("census").in_flight == 3
    assert worker.exchange(*(Ack(each) for each in sorted(worker.held))).status is Status.FINISHED
    assert live.call("census").done == 3


def test_a_suspect_under_the_id_of_another_one_is_the_only_one(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """When the other one is settled, the worker still holds a suspect, and gets no second one."""
    worker.exchange(put(0, payload=b"genuine", partition=b"a"), want=1)
    for n in (0, 5):
        FORGED_ENTRIES["a suspect"](live, entry_id(n) + b"forged")
    live.redis.zadd(live.key("suspects"), {b"a": 0})
    assert len(worker.exchange(want=9).leases) == 1
    assert worker.exchange(ack(0), want=9).leases == ()
    assert len(worker.exchange(*(Ack(each) for each in worker.held), want=9).leases) == 1


@pytest.mark.parametrize("value", ["EVIL", b"\xff" * 12, entry_id(9)])
def test_a_suspect_that_no_worker_holds_keeps_no_other_one_waiting(
    live: LiveFrontier, worker: HandWorker, value: bytes
) -> None:
    """`quarantined` of a worker's record, written by somebody else."""
    dead = HandWorker(live, "dead")
    dead.exchange(put(1), want=1)
    worker.reclaim("dead")
    live.redis.hset(live.key("worker:worker"), "quarantined", value)
    assert numbers(worker.exchange(want=1)) == [1]


LONG_NAME = b"x" * (MAX_PARTITION_BYTES + 1)
WITH_LONG_NAME: dict[str, Callable[[LiveFrontier], Any]] = {
    "in a list": lambda live: (
        live.redis.rpush(live.key(f"backlog:0:{LONG_NAME.decode()}"), *(b"%020d" % n for n in range(99))),
        live.redis.hset(live.key("bands"), LONG_NAME, BIASED_ZERO),
        live.redis.zadd(live.key("rotation"), {LONG_NAME: -1}),
    ),
    "returned": lambda live: (
        live.redis.zadd(live.key("returned"), {LONG_NAME + b"\0" + b"%029d" % n: 0 for n in range(99)}),
        live.redis.zadd(live.key("rotation"), {LONG_NAME: -1}),
    ),
    "delayed": lambda live: live.redis.zadd(
        live.key("delayed"), {b"%012d" % n + BIASED_ZERO + LONG_NAME + b"\0": 1 for n in range(9)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", WITH_LONG_NAME)
def test_the_name_of_a_partition_that_is_too_long_is_not_copied(
    live: LiveFrontier, worker: HandWorker, where: str
) -> None:
    """With each lease, and into each dead letter: 20 bytes of an entry would cost as much as the name has."""
    worker.exchange(*puts(b"a", 2))
    WITH_LONG_NAME[where](live)
    held: list[bytes] = []
    leased = 0
    for _ in range(9):
        receipt = worker.exchange(*(Ack(each) for each in held), want=50)
        held = [lease.entry_id for lease in receipt.leases]
        leased += len(held)
        assert not [lease for lease in receipt.leases if len(lease.partition) > MAX_PARTITION_BYTES]
        if receipt.damage:
            live._loop.run_until_complete(audit(live.frontier, worker.epoch, worker.run))
        if receipt.status is Status.FINISHED:
            break
        live.advance(1)
    else:
        pytest.fail(f"the run does not end: {receipt}")
    # What falls due is leased without a partition: it becomes a dead letter.
    assert leased == (11 if where == "delayed" else 2)


def test_a_list_of_a_partition_whose_name_is_too_long_is_none(live: LiveFrontier, worker: HandWorker) -> None:
    """An audit finds it by its name, and reports nothing."""
    live.redis.rpush(live.key(f"backlog:0:{LONG_NAME.decode()}"), b"%020d" % 1)
    assert live.run(audit(live.frontier, worker.epoch, worker.run)) == Audited()


@pytest.mark.parametrize("until", [float("inf"), 1e300, 4e12])
@pytest.mark.parametrize(
    "keys_", [("earliest",), ("earliest", "resting"), ("earliest", "blocked", "resting")]
)
def test_no_partition_rests_longer_than_a_worker_would_let_it(
    live: LiveFrontier, worker: HandWorker, keys_: tuple[str, ...], until: float
) -> None:
    """A delay is at most a day, a block at most a year."""
    worker.exchange(*puts(b"a", 2))
    for name in keys_:
        live.redis.zadd(live.key(name), {"a": until})
    if "resting" in keys_:
        live.redis.zrem(live.key("rotation"), "a")
    end(live, worker, [])
    assert live.call("census").done == 2


def test_a_block_of_a_year_is_kept(live: LiveFrontier, worker: HandWorker) -> None:
    """By the commands; and it can be lifted."""
    worker.exchange(*puts(b"a", 2))
    live.call("limit", b"a", block_s=31_536_000.0)
    assert worker.take(2) == []
    live.call("limit", b"a", block_s=0.0)
    assert worker.take(2) == [0, 1]


@pytest.mark.parametrize("what", ["an id", "a partition"])
def test_what_is_long_is_not_copied_into_each_dead_letter(
    live: LiveFrontier, worker: HandWorker, what: str
) -> None:
    """Of a member that somebody else wrote, or of its leases."""
    long = b"x" * 100_000
    name, partition = (long, b"a") if what == "an id" else (b"dead", long)
    record = BIASED_ZERO + b"\xff" + partition + b"\0" + TURN
    live.redis.sadd(live.key("members"), name)
    live.redis.hset(live.key("").encode() + b"worker:" + name, "last_seq", 1)
    leases = {entry_id(n): record + entry_id(n) for n in range(20)}
    live.redis.hset(live.key("").encode() + b"in-flight:" + name, mapping=leases)
    worker.reclaim(name.decode())
    assert live.redis.hlen(live.key("dead")) == 20
    assert sum(map(len, live.redis.hvals(live.key("dead")))) < 20 * 1_000


@pytest.mark.parametrize(("count", "size"), [(1_500, 20), (3, 100_000)])
def test_forged_members_leave_no_endless_list_of_starts(
    live: LiveFrontier, worker: HandWorker, count: int, size: int
) -> None:
    """It is read as a whole whenever nothing waits. The run stays open, as long as one of them is missing."""
    for n in range(count):
        live.redis.sadd(live.key("members"), f"forged{n}")
        record = {"starts": f"{n} " + "x" * size, "seeding": 1, "last_seq": 0, "fenced": 0}
        live.redis.hset(live.key(f"worker:forged{n}"), mapping=record)
        worker.reclaim(f"forged{n}")
    assert live.redis.hstrlen(live.key("meta"), "starts") < 60_000
    assert 0 < worker.exchange(seeding=0).census.incomplete <= 1_001


def test_an_entry_that_was_added_leaves_no_count_below_zero(live: LiveFrontier, worker: HandWorker) -> None:
    """Queue.join() and a worker's idle time wait until the counts are 0."""
    worker.exchange(put(1, partition=b"a"))
    live.redis.rpush(live.key("backlog:0:a"), bytes(8) + entry_id(7) + b"added")
    for _ in range(3):
        receipt = worker.exchange(*(ack(int(lease)) for lease in sorted(worker.held)), want=9)
    assert receipt.census.empty
    assert receipt.status is Status.FINISHED


@pytest.mark.parametrize("value", ["x", "9223372036854775807", "1.5"])
def test_a_heartbeat_that_is_no_number_is_replaced(
    live: LiveFrontier, worker: HandWorker, value: str
) -> None:
    """Else each beat fails, and no worker notices a dead one."""
    live.redis.hset(live.key("beats"), "worker", value)
    assert live.call("beats", "worker", worker.epoch) == {"worker": 1}
    assert live.call("beats", "worker", worker.epoch) == {"worker": 2}


def test_a_long_name_of_a_partition_is_not_copied_by_a_look(live: LiveFrontier, worker: HandWorker) -> None:
    """3 MB of Redis became 1 GB of an answer."""
    worker.exchange(put(1, partition=b"a"))
    name = b"x" * 100_000
    live.redis.zadd(live.key("rotation"), {name: -1})
    live.redis.hset(live.key("bands"), name, struct.pack(">Q", 2**52))
    live.redis.rpush(live.key("backlog:0:").encode() + name, *(bytes(8) + entry_id(n) for n in range(50)))
    assert [each.partition for each in upcoming(live.redis, live.crawl, 100)] == ["a"]


@pytest.mark.parametrize("rank", ["nan", "inf", "0x1", "1e3", " 1"])
def test_a_list_whose_rank_is_no_number_is_deleted(live: LiveFrontier, worker: HandWorker, rank: str) -> None:
    """With "nan" each `scrapy dq clear` failed."""
    live.redis.set(live.key(f"backlog:{rank}:x"), 1)
    lists = [rank.encode(), b"x"]
    live.call("audit", worker.epoch, worker.run, lists, [])
    assert live.call("purge", Found(lists, [], [])) == 1


@pytest.mark.parametrize("turn", [0, 2**52 - 1, 2**52, 2**53, 10**30])
def test_all_partitions_have_their_turns_whatever_the_last_one_was(
    live: LiveFrontier, worker: HandWorker, turn: int
) -> None:
    """Set back, the one that is served would go first for as long as it takes to be there again."""
    for n, partition in enumerate((b"a", b"b", b"c")):
        worker.exchange(*puts(partition, 30, 100 * n))
    for _ in range(10):
        worker.exchange(want=1)
    change_count(live.redis, live.crawl, "turn", lambda _: turn)
    turns = [worker.exchange(want=1).leases[0].partition for _ in range(30)]
    assert all(sorted(turns[n : n + 3]) == [b"a", b"b", b"c"] for n in range(3, 30, 3))


@pytest.mark.parametrize("sequence", [2**52, 2**53, 10**30])
@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
def test_the_order_is_kept_behind_a_sequence_that_cannot_grow(
    redis_server: RedisServer, crawl_name: str, order: Order, sequence: int
) -> None:
    """An entry that comes back takes its place among those that were put later."""
    with closing(LiveFrontier(redis_server.url, crawl_name, order)) as live:
        worker = HandWorker(live, "worker")
        change_count(live.redis, live.crawl, "sequence", lambda _: sequence)
        worker.exchange(put(0))
        worker.exchange(put(1), want=1)
        (first,) = worker.held
        worker.exchange(put(2), Release(first))
        expected = [0, 1, 2] if order is Order.FIFO else [2, 1, 0]
        assert numbers(worker.exchange(want=9)) == expected


@pytest.mark.parametrize("number", [10**14, 2**52, 10**30])
def test_a_word_is_heard_behind_large_counters(live: LiveFrontier, worker: HandWorker, number: int) -> None:
    """As a number, Lua writes 1e+14 for the first one, which no worker reads."""
    live.redis.hset(live.key("meta"), "told", " ".join([str(number)] * 4))
    before = worker.exchange().words
    steer(live.redis, live.crawl, Word.STOP)
    after = worker.exchange().words
    assert after.count > min(before.count, 2**52)
    assert after.stops > min(before.stops, 2**52)


@pytest.mark.parametrize("events", [b"none", b"9" * 15, b"9" * 400])
def test_workers_join_behind_large_numbers_of_events(live: LiveFrontier, events: bytes) -> None:
    """HINCRBY refuses what is no number, or too large."""
    HandWorker(live, "first")
    live.redis.hset(live.key("meta"), "events", events)
    HandWorker(live, "second")
    HandWorker(live, "third")
    joined = [int(live.redis.hget(live.key(f"worker:{each}"), "joined")) for each in ("second", "third")]
    assert joined[0] < joined[1] or joined[0] > 2**52


@pytest.mark.parametrize("score", [2**52 + 1, 1e300, math.inf])
def test_a_turn_that_never_comes(live: LiveFrontier, worker: HandWorker, score: float) -> None:
    """Its partition is served in spite of others that have more than is wanted."""
    for n, partition in enumerate((b"a", b"b", b"c")):
        worker.exchange(*puts(partition, 30, 100 * n))
    live.redis.zadd(live.key("rotation"), {b"b": score})
    turns = [worker.exchange(want=1).leases[0].partition for _ in range(9)]
    assert turns.count(b"b") >= 3


@pytest.mark.parametrize("events", [b"9" * 15, b"%d" % 2**53, b"9" * 20])
def test_an_interrupted_start_is_completed_behind_large_numbers_of_events(
    live: LiveFrontier, events: bytes
) -> None:
    """Of its worker alone: it is completed by one that has begun later, by the number of the event."""
    live.redis.hset(live.key("meta"), "events", events)
    own = replace(IDENTITY, starts="*{}")
    dead, worker = HandWorker(live, "dead", own), HandWorker(live, "worker", IDENTITY)
    dead.exchange(seeding=Seeding.ACTIVE)
    worker.reclaim("dead")
    assert worker.exchange().census.incomplete == 1
    later = HandWorker(live, "later", own)
    later.exchange(seeding=Seeding.ACTIVE)
    assert later.exchange(seeding=Seeding.DONE).census.incomplete == 0


def test_starts_that_are_too_long_count_as_one(live: LiveFrontier, worker: HandWorker) -> None:
    """To unpack 1 MB of small tables takes half a second and 85 MB, in each exchange of an idle worker."""
    live.redis.hset(live.key("meta"), "starts", b"\xdd\0\x0f\x42\x40" + b"\x90" * 1_000_000)
    assert worker.exchange().census.incomplete == 1
    dead = HandWorker(live, "dead", replace(IDENTITY, starts="{}"))
    dead.exchange(seeding=Seeding.ACTIVE)
    worker.reclaim("dead")
    assert worker.exchange().census.incomplete == 2
    later = HandWorker(live, "later", replace(IDENTITY, starts="{}"))
    later.exchange(seeding=Seeding.ACTIVE)
    assert later.exchange(seeding=Seeding.DONE).census.incomplete == 0


def test_no_more_starts_are_noted_than_are_read(live: LiveFrontier, worker: HandWorker) -> None:
    """What does not fit counts as one, and stays interrupted."""
    full = {f"{n:06}" + "x" * 4000: "done" for n in range(65)}
    full["rest"] = "x" * (256 * 1024 - len(msgpack.packb(full)) - 10)
    live.redis.hset(live.key("meta"), "starts", msgpack.packb(full))
    dead = HandWorker(live, "dead", replace(IDENTITY, starts="{}"))
    dead.exchange(seeding=Seeding.ACTIVE)
    worker.reclaim("dead")
    assert worker.exchange().census.incomplete == 1
    assert live.redis.hget(live.key("meta"), "starts")[:3] == b"\x81\xa1?"
