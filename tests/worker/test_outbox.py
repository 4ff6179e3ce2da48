"""The outbox and the log of confirmed puts, by themselves."""

from __future__ import annotations

import logging

import pytest

from scrapy_dq.frontier import outbox as module
from scrapy_dq.frontier.model import (
    MAX_EXCHANGE_BYTES,
    MAX_MOVES,
    Ack,
    Admission,
    Bury,
    Move,
    Put,
    Release,
)
from scrapy_dq.frontier.outbox import Outbox, PutLog

PARENT = b"p" * 12


def entry_id(number: int) -> bytes:
    return b"%012d" % number


def put(number: int, *, parent: bytes | None = PARENT, payload: bytes = b"") -> Put:
    return Put(entry_id(number), Admission.ID, entry_id(number), 0, False, payload, parent)


def filled(*moves: Move) -> Outbox:
    outbox = Outbox()
    for move in moves:
        outbox.append(move)
    return outbox


def test_an_exchange_takes_a_prefix_in_the_order_of_the_moves() -> None:
    """Children stand before the ack of their parent, whatever the cut."""
    moves: list[Move] = [put(1), put(2), Ack(PARENT), put(3)]
    outbox = filled(*moves)
    assert outbox.prefix() == moves
    outbox.confirm(moves[:3])
    assert outbox.prefix() == list(outbox) == [put(3)]
    assert len(outbox) == 1


def test_a_prefix_has_at_most_max_moves() -> None:
    """What is beyond goes with the next one, and makes the outbox full: no lingering."""
    moves = [put(number) for number in range(MAX_MOVES + 5)]
    outbox = filled(*moves[: MAX_MOVES - 1])
    assert not outbox.full
    for move in moves[MAX_MOVES - 1 :]:
        outbox.append(move)
    assert outbox.full
    assert outbox.prefix() == moves[:MAX_MOVES]
    outbox.confirm(moves[:MAX_MOVES])
    assert (outbox.prefix(), outbox.full) == (moves[MAX_MOVES:], False)


def test_a_prefix_has_about_max_bytes_and_at_least_one_move() -> None:
    """4 MiB each way; one put that is larger by itself goes alone rather than never."""
    third = MAX_EXCHANGE_BYTES // 3 + 1
    large = [put(number, payload=b"x" * third) for number in range(3)]
    outbox = filled(*large)
    assert outbox.full
    assert outbox.prefix() == large[:2]
    outbox.confirm(large[:2])
    assert not outbox.full
    huge = put(9, payload=b"x" * (MAX_EXCHANGE_BYTES + 1))
    assert filled(huge, put(1)).prefix() == [huge]


def test_parentless_puts_are_counted_until_they_are_confirmed() -> None:
    """Nobody else knows of them: as long as one waits, the worker seeds."""
    seed, child = put(1, parent=None), put(2)
    outbox = filled(seed, child, Ack(PARENT), put(3, parent=None))
    assert outbox.parentless == 2
    outbox.confirm([seed, child])
    assert outbox.parentless == 1
    outbox.replay([put(4, parent=None)], ())
    assert outbox.parentless == 2


def test_a_replay_puts_the_log_first_and_drops_what_settles_others_leases() -> None:
    """After a rejoin: log, then puts and what settles the leases that are owned, in their order."""
    kept, gone = entry_id(1), entry_id(2)
    outbox = filled(
        put(10), Ack(gone), Ack(kept), put(11, payload=b"xy"), Release(gone), Bury(gone, "why"),
        Bury(kept, "why"), Release(kept),
    )  # fmt: skip
    outbox.replay([put(5), put(6)], {kept})
    expected: list[Move] = [
        put(5), put(6), put(10), Ack(kept), put(11, payload=b"xy"), Bury(kept, "why"), Release(kept),
    ]  # fmt: skip
    assert list(outbox) == expected
    outbox.confirm(expected)
    assert (len(outbox), outbox.parentless, outbox._bytes) == (0, 0, 0)


def test_a_logged_put_retires_by_an_exchange_sent_late_enough() -> None:
    """Not by the clock: only an accepted exchange that was sent a whole horizon after the confirmation."""
    log = PutLog(horizon_s=10)
    log.add(put(1), confirmed_at=100.0)
    log.add(put(2), confirmed_at=105.0)
    log.retire(sent_at=109.9)
    log.retire(sent_at=110.0)
    log.add(put(3), confirmed_at=111.0)
    assert log.take() == [put(2), put(3)]
    assert log.take() == []


def test_a_logged_put_lets_go_of_its_source() -> None:
    """The request itself is not kept in memory for the horizon."""
    log = PutLog(10)
    logged = put(1)
    logged.source = object()
    log.add(logged, 0.0)
    assert logged.source is None


def test_the_log_is_bounded_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Past the bound the oldest go, with one warning that names DQ_ROLLBACK_HORIZON."""
    monkeypatch.setattr(module, "LOG_LIMIT_BYTES", 1000)
    log = PutLog(10)
    for number in range(30):
        log.add(put(number, payload=b"x" * 100), 0.0)
    kept = log.take()
    assert kept[-1].entry_id == entry_id(29)
    assert [p.entry_id for p in kept] == [entry_id(n) for n in range(30 - len(kept), 30)]
    assert 5 <= len(kept) <= 10
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "DQ_ROLLBACK_HORIZON" in record.getMessage()
    log.add(put(30, payload=b"x" * 100), 0.0)  # what was taken does not count any more
    assert len(log.take()) == 1
