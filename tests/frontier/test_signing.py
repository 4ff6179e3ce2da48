"""Signed entries: what nobody with a key has written, or has changed, is not handed out."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from scrapy_dq.codec import formats
from scrapy_dq.frontier.model import (
    Ack,
    Bury,
    Claim,
    FrontierRefused,
    Order,
    Release,
    StartKeys,
    Status,
    Terms,
)
from scrapy_dq.frontier.signing import FROM_STREAM, MAC_BYTES, MARK, MOVED, Signer, without_signature
from support.live_frontier import HandWorker, LiveFrontier, ack, put
from support.redis_server import RedisServer

OLD, NEW = "the older of two keys", "the newer of two keys"
ID, OTHER_ID = b"0123456789ab", b"ba9876543210"
PAYLOAD = b"\1payload"


@pytest.mark.parametrize("payload", [PAYLOAD, b"", MARK, MARK * 40])
def test_what_was_signed_comes_back(payload: bytes) -> None:
    """Whatever it begins with, for everybody with the key, and for those who go without keys."""
    stored = Signer("crawl", [OLD]).signed(ID, payload)
    assert len(stored) == len(MARK) + MAC_BYTES + len(payload)
    assert Signer("crawl", [NEW, OLD]).verified(ID, stored) == payload
    assert Signer("crawl").verified(ID, stored) == payload


@pytest.mark.parametrize(
    ("signer", "entry_id"),
    [
        (Signer("crawl", [NEW]), ID),
        (Signer("another crawl", [OLD]), ID),
        (Signer("crawl", [OLD]), OTHER_ID),
    ],
)
def test_it_is_bound_to_key_crawl_and_entry(signer: Signer, entry_id: bytes) -> None:
    """What was signed in another crawl, or as another entry, is not valid for this one."""
    assert signer.verified(entry_id, Signer("crawl", [OLD]).signed(ID, PAYLOAD)) is None


def test_no_changed_byte_passes() -> None:
    """Nor does a part of it, an unsigned one, or a signature alone."""
    signer = Signer("crawl", [OLD])
    stored = signer.signed(ID, PAYLOAD)
    for at in range(len(stored)):
        changed = bytes((*stored[:at], stored[at] ^ 1, *stored[at + 1 :]))
        assert signer.verified(ID, changed) is None
        assert signer.verified(ID, stored[:at]) is None
    assert signer.verified(ID, PAYLOAD) is None
    assert signer.verified(ID, stored + b"\0") is None


def test_only_what_redis_itself_makes_entries_of_goes_unsigned() -> None:
    """Payloads of start keys, where a spider is fed."""
    fed = bytes((formats.PAYLOAD,)) + b"http://localhost/"
    assert Signer("crawl", [OLD], bytes((formats.PAYLOAD,))).verified(ID, fed) == fed
    assert Signer("crawl", [OLD], bytes((formats.PAYLOAD,))).verified(ID, PAYLOAD) is None
    assert Signer("crawl", [OLD]).verified(ID, fed) is None
    assert bytes((formats.SIGNED, formats.MOVED, formats.FROM_STREAM)) == MARK + MOVED + FROM_STREAM


Open = Callable[..., LiveFrontier]


@pytest.fixture
def open_signed(redis_server: RedisServer, crawl_name: str) -> Iterator[Open]:
    """Yield what opens the frontier of one crawl with these keys."""
    with ExitStack() as stack:

        def open_one(*signing_keys: str, start_keys: StartKeys | None = None) -> LiveFrontier:
            live = LiveFrontier(
                redis_server.url, crawl_name, Order.FIFO, start_keys=start_keys, signing_keys=signing_keys
            )
            return stack.enter_context(closing(live))

        yield open_one


def stored_payload(live: LiveFrontier) -> bytes:
    """Return the only entry of the only list, without turn and id."""
    (element,) = live.redis.lrange(live.key("backlog:0:"), 0, -1)
    return bytes(element[20:])


def test_entries_are_signed_in_redis_and_nowhere_else(open_signed: Open) -> None:
    """A worker puts and gets what it always did."""
    live = open_signed(OLD)
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, payload=PAYLOAD))
    assert stored_payload(live) == live.frontier.signer.signed(put(1).entry_id, PAYLOAD)
    (lease,) = worker.exchange(want=1).leases
    assert (lease.payload, lease.genuine) == (PAYLOAD, True)


def test_a_changed_entry_is_leased_as_none(open_signed: Open) -> None:
    """Its payload reaches nobody."""
    live = open_signed(OLD)
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, payload=PAYLOAD))
    element = live.redis.lpop(live.key("backlog:0:"))
    live.redis.rpush(live.key("backlog:0:"), element[:20] + PAYLOAD)
    (lease,) = worker.exchange(want=1).leases
    assert (lease.payload, lease.genuine) == (b"", False)


def test_a_forged_entry_under_its_id_makes_none_void(open_signed: Open) -> None:
    """While it is in flight, the genuine one gets another id, and is still verified under its own."""
    live = open_signed(OLD)
    worker = HandWorker(live, "worker")
    entry_id = put(1).entry_id
    worker.exchange(put(1, payload=PAYLOAD))
    element = live.redis.lindex(live.key("backlog:0:"), 0)
    live.redis.lpush(live.key("backlog:0:"), element[:20] + b"forged")
    (forged,) = worker.exchange(want=1).leases
    assert (forged.entry_id, forged.genuine) == (entry_id, False)
    for _ in range(2):
        (moved,) = worker.exchange(want=1).leases
        assert moved.entry_id != entry_id
        assert (moved.payload, moved.genuine) == (PAYLOAD, True)
        worker.exchange(Release(moved.entry_id))
    (moved,) = worker.exchange(want=1).leases
    assert worker.exchange(Ack(moved.entry_id), Bury(forged.entry_id, "forged")).status is Status.FINISHED
    assert without_signature(MOVED + entry_id + live.frontier.signer.signed(entry_id, PAYLOAD)) == PAYLOAD


def test_nobody_knows_the_id_that_it_gets_then(open_signed: Open) -> None:
    """Else, a second forged entry would wait under that one."""
    live = open_signed(OLD)
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, payload=PAYLOAD))
    element = live.redis.lindex(live.key("backlog:0:"), 0)
    record = struct.pack(">QB", 2**52, 0) + b"\0" + element
    named = hashlib.sha1(record, usedforsecurity=False).hexdigest()[:12].encode()
    live.redis.lpush(live.key("backlog:0:"), element[:8] + named + b"forged", element[:20] + b"forged")
    leases = [lease for _ in range(4) for lease in worker.exchange(want=9).leases]
    assert [lease.payload for lease in leases if lease.genuine] == [PAYLOAD]
    assert len({lease.entry_id for lease in leases}) == 3


@pytest.mark.parametrize(("first", "then"), [((), (OLD,)), ((OLD,), ()), ((OLD,), (NEW,))])
def test_workers_without_a_common_key_do_not_meet(
    open_signed: Open, first: list[str], then: list[str]
) -> None:
    """Each would bury what the other one puts: the second is refused as it joins."""
    going = HandWorker(open_signed(*first), "going")
    going.exchange(put(1))
    with pytest.raises(FrontierRefused, match="Give all its workers the same DQ_SIGNING_KEYS"):
        HandWorker(open_signed(*then), "coming")
    # Of a run that is over, nothing is left to read.
    going.exchange(want=1)
    assert going.exchange(ack(1)).status is Status.FINISHED
    HandWorker(open_signed(*then), "coming")


def test_workers_with_a_key_refuse_a_crawl_of_a_version_that_signed_nothing(open_signed: Open) -> None:
    """What waits there has no signature: it would become dead letters."""
    live = open_signed()
    HandWorker(live, "going").exchange(put(1))
    live.redis.hdel(live.key("meta"), "signing")
    with pytest.raises(FrontierRefused, match="DQ_SIGNING_KEYS"):
        HandWorker(open_signed(OLD), "coming")
    HandWorker(open_signed(), "like it")


def test_keys_are_rotated_in_three_steps(open_signed: Open) -> None:
    """The new one verifies everywhere before it signs anywhere, and the old one goes last."""
    HandWorker(open_signed(OLD), "1").exchange(put(1))
    HandWorker(open_signed(OLD, NEW), "2").exchange(put(2))
    last = HandWorker(open_signed(NEW, OLD), "3")
    last.exchange(put(3))
    leases = [last.exchange(want=1).leases[0] for _ in range(3)]
    assert all(lease.genuine for lease in leases)
    HandWorker(open_signed(NEW), "4")
    with pytest.raises(FrontierRefused, match="DQ_SIGNING_KEYS"):
        HandWorker(open_signed(OLD), "5")


def test_what_is_fed_needs_no_signature(open_signed: Open, crawl_name: str) -> None:
    """Whoever pushes to a start key has no key to sign with."""
    live = open_signed(OLD, start_keys=StartKeys("list", (f"{crawl_name}:fed",), b"\2"))
    live.redis.rpush(f"{crawl_name}:fed", "http://localhost/", "http://localhost/2")
    worker = HandWorker(live, "worker")
    claim = Terms(claim=Claim("list", b"\2", b"stem-of-"))
    leases = worker.exchange(want=2, terms=claim).leases
    assert [(lease.payload, lease.genuine) for lease in leases] == [
        (b"\2http://localhost/", True),
        (b"\2http://localhost/2", True),
    ]
    live.redis.delete(f"{crawl_name}:fed")
