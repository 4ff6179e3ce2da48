"""Guards of the protocol for rare moments; the test controls the answers and the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from scrapy_dq.frontier.answers import Receipt, Rejoined
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.model import (
    MAX_MOVES,
    Admission,
    Block,
    Census,
    Commands,
    Lease,
    Parentless,
    Seeding,
    Sent,
    Status,
)
from scrapy_dq.frontier.moves import Move, Put, Release
from scrapy_dq.frontier.worker import dialogue as module
from scrapy_dq.frontier.worker.worker import Worker
from support.spoken import Spoken
from worker.engine import IDENTITY

HORIZON_S = 10.0
PARENT = b"p" * 12
APPLIED = Receipt(Status.OK, applied=True)


class Talk:
    """A protocol and its frontier. The test sets the frontier's answers and their delay."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.crawl = "crawl"
        self.start_keys = None
        self.numbers: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while an exchange is under way."""
        self.seeding: list[int] = []
        self.held: list[int] = []
        """The level of seeding and the count of leases that each exchange reports."""
        self.told: list[Any] = []
        """The notes in each exchange."""
        self.parentless: list[Parentless] = []
        """Each rejoin's report about puts without a parent lease."""
        self.rejoined = Rejoined(Status.OK)
        self.spoken = Spoken(self, IDENTITY, HORIZON_S)  # type: ignore[arg-type]
        self.protocol = self.spoken.protocol

    async def speak(self, answer: Receipt = APPLIED, takes_s: float = 0.0) -> None:
        self._answer, self._takes_s = answer, takes_s
        await self.spoken.exchange(0)

    async def stored_again(self) -> list[Move]:
        """Get out of step with Redis; return the moves that the worker sends after the rejoin."""
        await self.speak(Receipt(Status.RESYNC))
        await self.speak()
        return self.protocol.outbox.prefix()

    # Methods of Frontier

    async def exchange(self, call: Exchange) -> Receipt:
        self.numbers.append(call.seq)
        self.meanwhile()
        self.seeding.append(call.seeding)
        self.held.append(call.held)
        self.told.append(msgpack.unpackb(call.terms, raw=True)[3])
        self.now += self._takes_s
        return self._answer

    async def rejoin(self, call: Rejoin, *_: Any) -> Rejoined:
        self.parentless.append(call.parentless)
        return self.rejoined

    # A function of the module `time`

    def monotonic(self) -> float:
        return self.now


def worker_of(talk: Talk) -> Worker:
    """Return the worker of a protocol, to ask about its run."""
    worker = object.__new__(Worker)
    worker.protocol, worker.leases = talk.protocol, talk.protocol.leases
    return worker


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    talk = Talk()
    monkeypatch.setattr(module, "time", talk)
    return talk


def put(number: int, parent: bytes | None = None) -> Put:
    return Put(b"%012d" % number, Admission.ID, b"%012d" % number, 0, False, b"", parent)


async def test_an_exchange_that_was_sent_before_the_horizon_retires_no_put(talk: Talk) -> None:
    """The time of sending counts, because Redis may have been rolled back while the answer was on its way."""
    talk.protocol.outbox.append(put(1))
    await talk.speak()
    talk.now += HORIZON_S - 1
    await talk.speak(takes_s=HORIZON_S)
    assert await talk.stored_again() == [put(1)]


async def test_time_alone_retires_no_put(talk: Talk) -> None:
    """A refused exchange retires no put either: Redis may have been rolled back during a freeze."""
    talk.protocol.outbox.append(put(1))
    await talk.speak()
    talk.now += 100 * HORIZON_S
    assert await talk.stored_again() == [put(1)]


async def test_an_exchange_that_was_sent_after_the_horizon_retires_the_put(talk: Talk) -> None:
    """Otherwise the log would grow without an end."""
    talk.protocol.outbox.append(put(1))
    await talk.speak()
    talk.now += HORIZON_S
    await talk.speak()
    assert await talk.stored_again() == []


async def test_a_put_that_was_already_seen_is_also_stored_again(talk: Talk) -> None:
    """A roll-back may lose the put after the worker that stored it first has left.

    The parent in this worker does not run again, so nothing else would repeat the put.
    """
    talk.protocol.outbox.append(put(1, PARENT))
    await talk.speak(Receipt(Status.OK, applied=True, dropped=(0,)))
    assert await talk.stored_again() == [put(1, PARENT)]


async def test_a_parentless_put_that_waits_keeps_the_worker_seeding(talk: Talk) -> None:
    """Only this outbox knows the put, so an earlier exchange must not finish the run."""
    talk.protocol.seeding = 0
    for number in range(MAX_MOVES):
        talk.protocol.outbox.append(put(number, PARENT))
    talk.protocol.outbox.append(put(MAX_MOVES))
    await talk.speak()
    await talk.speak()
    assert talk.seeding == [1, 0]


async def test_a_worker_has_not_finished_while_its_outbox_has_moves(talk: Talk) -> None:
    """An exchange with a part of the outbox has finished the run, and the other part will open it again."""
    talk.protocol.seeding = Seeding.DONE
    for number in range(MAX_MOVES + 1):
        talk.protocol.outbox.append(put(number))
    await talk.speak(Receipt(Status.FINISHED, applied=True))
    assert (talk.protocol.finished, worker_of(talk).pending) == (False, True)
    await talk.speak(Receipt(Status.FINISHED, applied=True))
    assert (talk.protocol.finished, worker_of(talk).pending) == (True, False)


async def test_a_rejoin_reports_parentless_puts(talk: Talk) -> None:
    """The rejoin reports whether parentless puts wait or are logged. A child comes back with its parent."""
    talk.protocol.seeding = Seeding.DONE
    talk.protocol.outbox.append(put(1, PARENT))
    await talk.stored_again()
    talk.protocol.outbox.append(put(2))
    await talk.stored_again()
    await talk.speak()
    await talk.stored_again()
    assert talk.parentless == [Parentless.NONE, Parentless.WAITING, Parentless.LOGGED]


async def test_a_worker_has_not_finished_while_start_still_yields(talk: Talk) -> None:
    """Redis was rolled back to before this worker joined, and other workers finished the run."""
    await talk.stored_again()
    assert talk.parentless == [Parentless.WAITING]
    await talk.speak(Receipt(Status.FINISHED, applied=True))
    assert (talk.protocol.finished, worker_of(talk).pending) == (True, True)
    talk.protocol.seeding = Seeding.DONE
    assert not worker_of(talk).pending


@pytest.mark.parametrize(
    ("seeding", "last_seq", "ending"),
    [
        (Seeding.ACTIVE, None, "run_over"), (Seeding.ACTIVE, 0, "finished"),
        (Seeding.ACTIVE, 2**52, "run_over"), (Seeding.DONE, None, "finished"),
        (Seeding.DONE, 2**52, "finished"),
    ],
)  # fmt: skip
async def test_a_start_that_redis_has_forgotten_is_reported(
    talk: Talk, seeding: Seeding, last_seq: int | None, ending: str
) -> None:
    """If Redis knows the worker's last exchange, an equal start() of another worker replaced this start().

    *last_seq* is None if Redis has no record of the worker, and 2**52 if the next run has begun.
    """
    talk.protocol.seeding = seeding
    talk.rejoined = Rejoined(Status.FINISHED, last_seq=last_seq)
    await talk.stored_again()
    assert (worker_of(talk).pending, worker_of(talk).ending) == (False, ending)


@pytest.mark.parametrize(
    ("seeding", "census", "leased", "ending"),
    [
        (Seeding.ACTIVE, Census(), False, "run_over"),
        (Seeding.DONE, Census(waiting=1), False, "run_over"),
        (Seeding.DONE, Census(in_flight=1), True, "run_over"),
        (Seeding.DONE, Census(), False, "finished"),
    ],
)
async def test_the_close_reason_reports_work_left_when_the_next_run_began(
    talk: Talk, seeding: Seeding, census: Census, leased: bool, ending: str
) -> None:
    """An empty exchange finds a later run: other workers have begun it, or a user has changed its number."""
    talk.protocol.seeding = seeding
    leases = (Lease(b"%012d" % 1, 0, b""),) if leased else ()
    await talk.speak(Receipt(Status.OK, applied=True, census=census, leases=leases))
    await talk.speak(Receipt(Status.FINISHED))
    if talk.protocol.under_way:
        talk.rejoined = Rejoined(Status.FINISHED, last_seq=2**52)
        await talk.speak()
    assert (worker_of(talk).pending, worker_of(talk).ending) == (False, ending)


async def test_losses_that_an_audit_found_are_not_forgotten(talk: Talk) -> None:
    """The worker remembers the losses even if a user deletes their count from Redis."""
    talk.protocol.seeding = Seeding.DONE
    await talk.speak(Receipt(Status.OK, applied=True, census=Census(waiting=1, gone=2)))
    await talk.speak(Receipt(Status.FINISHED, applied=True, commands=Commands()))
    assert not worker_of(talk).pending
    assert worker_of(talk).ending == "frontier_damaged"


async def test_a_buffered_lease_that_was_reclaimed_is_not_handed_out(talk: Talk) -> None:
    """Another worker may be working on the reclaimed entry."""
    await talk.speak(Receipt(Status.OK, applied=True, leases=(Lease(b"%012d" % 1, 0, b""),)))
    assert talk.protocol.leases.buffered == 1
    await talk.stored_again()
    assert talk.protocol.leases.take(talk.now) is None


async def test_an_exchange_counts_the_leases_from_before_its_moves(talk: Talk) -> None:
    """A lease that is settled in the outbox still counts in Redis until the exchange is confirmed."""
    leases = talk.protocol.leases
    await talk.speak(Receipt(Status.OK, applied=True, leases=(Lease(b"%012d" % 1, 0, b""),)))
    leases.empty_buffer()
    release = Release(b"%012d" % 1)
    assert leases.settle(release)
    talk.protocol.outbox.append(release)
    await talk.speak()
    await talk.speak()
    assert talk.held == [0, 1, 0]


async def test_a_worker_whose_moves_meet_a_finished_run_rejoins_with_them(
    talk: Talk,
) -> None:
    """The moves were not applied, and only the rejoin shows whether the run is over for them."""
    talk.protocol.seeding = Seeding.DONE
    talk.protocol.outbox.append(put(1, PARENT))
    await talk.speak(Receipt(Status.FINISHED))
    assert not talk.protocol.finished
    await talk.speak()
    assert talk.parentless == [Parentless.NONE]
    assert talk.protocol.outbox.prefix() == [put(1, PARENT)]


async def test_a_put_during_the_report_of_the_end_gets_a_new_exchange_number(talk: Talk) -> None:
    """Redis stored the number of the exchange under way, so with that number the put would be a repeat."""
    talk.meanwhile = lambda: talk.protocol.outbox.append(put(len(talk.numbers)))
    await talk.speak(Receipt(Status.FINISHED, commands=Commands()))
    assert not talk.protocol.finished
    await talk.speak()
    assert talk.numbers == [1, 2]


async def test_a_finished_run_serves_nothing(talk: Talk) -> None:
    """The exchange counts as one without leases, so the pauses between exchanges grow."""
    talk._answer, talk._takes_s = Receipt(Status.FINISHED), 0.0
    assert await talk.spoken.exchange(5) == (5, 0)


async def test_a_listening_worker_takes_no_part_in_a_run_that_others_finished(
    talk: Talk,
) -> None:
    """The worker did not keep the run open while it was away. A finished run has no start payloads for it."""
    talk.protocol.seeding, talk.protocol.listening = 0, True
    await talk.speak(Receipt(Status.FINISHED))
    assert talk.protocol.over


async def test_a_buffer_that_outlived_its_run_is_not_handed_out(talk: Talk) -> None:
    """The run was finished, so other workers have done the buffered entries."""
    await talk.speak(Receipt(Status.OK, applied=True, leases=(Lease(b"%012d" % 1, 0, b""),)))
    await talk.speak(Receipt(Status.FINISHED, commands=Commands()))
    assert talk.protocol.finished
    assert talk.protocol.leases.take(talk.now) is None


# Notes and blocked partitions

SENT = Sent(b"a.com", b"%012d" % 1, 999.0)
TOLD = [1, b"a.com", b"%012d" % 1]


async def test_a_note_is_reported_once_and_with_its_age(talk: Talk) -> None:
    """Clocks of hosts are never compared.

    So a note contains the time since its request was sent, or the time until its block ends.
    """
    talk.protocol.notes += [SENT, Block(b"b.com", 1005.0), Block(b"c.com", 990.0)]
    await talk.speak()
    await talk.speak()
    assert talk.told == [[[*TOLD, 1000], [2, b"b.com", 5000], [2, b"c.com", 0]], []]


@pytest.mark.parametrize("answer", [Receipt(Status.RESYNC), Receipt(Status.FINISHED)])
async def test_a_note_that_was_not_applied_is_reported_again(talk: Talk, answer: Receipt) -> None:
    """After the rejoin, the worker sends the note again, with a greater age."""
    talk.protocol.outbox.append(put(1, PARENT))
    talk.protocol.notes.append(SENT)
    await talk.speak(answer)
    await talk.speak()
    talk.now += 3
    await talk.speak()
    assert talk.told == [[[*TOLD, 1000]], [[*TOLD, 4000]]]


async def test_a_note_that_comes_while_an_exchange_is_under_way_goes_with_the_next(talk: Talk) -> None:
    exchange = talk.exchange

    async def interrupted(*args: Any) -> Receipt:
        if not talk.told:
            talk.protocol.notes.append(SENT)
        return await exchange(*args)

    talk.exchange = interrupted  # type: ignore[method-assign]
    await talk.speak()
    await talk.speak()
    await talk.speak()
    assert talk.told == [[], [[*TOLD, 1000]], []]


async def test_buffered_leases_of_a_blocked_partition_are_given_back(talk: Talk) -> None:
    """Another worker saw the Retry-After; running leases continue."""
    leases = tuple(Lease(b"%012d" % n, 0, b"", partition) for n, partition in enumerate([b"a", b"a", b"b"]))
    await talk.speak(Receipt(Status.OK, applied=True, leases=leases))
    assert talk.protocol.leases.take(talk.now) == leases[0]
    await talk.speak(Receipt(Status.OK, applied=True, blocked=(b"a", b"elsewhere")))
    assert talk.protocol.outbox.prefix() == [Release(leases[1].entry_id)]
    assert talk.protocol.leases.take(talk.now) == leases[2]
    assert talk.protocol.leases.take(talk.now) is None


async def test_a_wrong_start_key_is_reported_once_until_it_changes(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that was repaired and is wrong again is reported again."""
    for wrong in ("one", "one", "two", "", "two", "two"):
        await talk.speak(Receipt(Status.OK, applied=True, wrong_key=wrong))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["one", "two", "two"]
