"""The replay log of confirmed puts."""

from __future__ import annotations

import logging

import pytest

from scrapy_dq.frontier.model import Admission
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker import replay_log as module
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.replay_log import ReplayLog


def entry_id(number: int) -> bytes:
    return b"%012d" % number


def put(number: int, *, payload: bytes = b"") -> Put:
    return Put(entry_id(number), Admission.ID, entry_id(number), 0, False, payload)


def test_a_logged_put_retires_with_an_exchange_sent_after_the_horizon() -> None:
    """Time alone retires no put.

    An accepted exchange retires the put if it was sent at least a horizon after the put's confirmation.
    """
    log = ReplayLog(10)
    log.add(put(1), confirmed_at=100.0, seq=1)
    log.add(put(2), confirmed_at=105.0, seq=2)
    log.retire(sent_at=109.9)
    log.retire(sent_at=110.0)
    log.add(put(3), confirmed_at=111.0, seq=3)
    assert log.take() == [put(2), put(3)]
    assert log.take() == []


def test_a_logged_put_drops_its_source_request() -> None:
    """The request itself is not kept in memory for the horizon."""
    log = ReplayLog(10)
    logged = put(1)
    logged.source = object()
    log.add(logged, 0.0, 1)
    assert logged.source is None
    assert not logged.fresh  # if Redis drops its repeat, that is no duplicate


def test_the_log_is_bounded_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the bound the oldest puts are dropped, with one warning that names DQ_ROLLBACK_HORIZON."""
    monkeypatch.setattr(module, "LOG_LIMIT_BYTES", 1000)
    log = ReplayLog(10)
    for number in range(30):
        log.add(put(number, payload=b"x" * 100), 0.0, 1)
    kept = log.take()
    assert kept[-1].entry_id == entry_id(29)
    assert [p.entry_id for p in kept] == [entry_id(n) for n in range(30 - len(kept), 30)]
    assert 5 <= len(kept) <= 10
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "DQ_ROLLBACK_HORIZON" in record.getMessage()
    log.add(put(30, payload=b"x" * 100), 0.0, 1)  # taken puts no longer count
    assert len(log.take()) == 1


def test_a_logged_put_outlives_the_lease_of_its_parent_through_replays() -> None:
    """The put was confirmed and its parent is done, so only this log has it, even after two roll-backs."""
    log, outbox = ReplayLog(10), Outbox()
    fed = put(1)
    fed.once, fed.parent = True, b"lease of it."
    log.add(fed, 0.0, 1)
    outbox.replay(log.take(), ())  # Redis was rolled back
    outbox.replay(log.take(), ())  # and again, before the first exchange
    assert outbox.prefix() == [fed]


def test_an_unconfirmed_put_of_a_start_payload_is_dropped_with_its_lease() -> None:
    """The new owner of the lease makes the put again, so the unconfirmed put would be a second one."""
    outbox, fed = Outbox(), put(1)
    fed.once, fed.parent = True, b"lease of it."
    outbox.append(fed)
    outbox.replay([], (b"lease of it.",))
    assert outbox.prefix() == [fed]
    outbox.replay([], ())
    assert (outbox.prefix(), len(outbox), outbox.puts) == ([], 0, 0)


def test_the_log_knows_whether_a_deep_roll_back_lost_any_puts() -> None:
    """A retired put whose exchange is later than any that Redis knows is neither stored nor in the log."""
    log = ReplayLog(10)
    child = put(2)
    child.parent = entry_id(9)
    for seq, (each, confirmed_at) in enumerate(((put(1), 0.0), (child, 0.0), (put(3), 9.0)), 1):
        log.add(each, confirmed_at, seq)
    assert log.forgot(None) == log.forgot(0) == (False, False)  # all puts are in the log
    log.retire(5.0)
    assert log.forgot(0) == (False, False)
    log.retire(10.0)
    assert log.forgot(2) == log.forgot(3) == (False, False)
    assert log.forgot(1) == (True, False)  # only the child is lost, and its parent yields it again
    assert log.forgot(0) == log.forgot(None) == (True, True)
    log.note_new_id("first")
    assert log.forgot(0) == (False, False)
    assert log.forgot(None) == (True, True)  # Redis knows no exchange of this id: it was rolled back further
    # Redis knows a former id: only puts that retired under the oldest id can be missing.
    log.note_new_id("second")
    assert log.former_ids == ["first", "second"]
    assert log.forgot(-2 - 2**52) == (False, False)
    assert log.forgot(-2 - 2) == log.forgot(-2 - 3) == (False, False)
    assert log.forgot(-2 - 1) == (True, False)
    assert log.forgot(-2) == (True, True)
