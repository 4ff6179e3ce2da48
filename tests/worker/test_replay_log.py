"""The log of confirmed puts, by itself."""

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


def test_a_logged_put_retires_by_an_exchange_sent_late_enough() -> None:
    """Not by the clock: only an accepted exchange that was sent a whole horizon after the confirmation."""
    log = ReplayLog(10)
    log.add(put(1), confirmed_at=100.0, seq=1)
    log.add(put(2), confirmed_at=105.0, seq=2)
    log.retire(sent_at=109.9)
    log.retire(sent_at=110.0)
    log.add(put(3), confirmed_at=111.0, seq=3)
    assert log.take() == [put(2), put(3)]
    assert log.take() == []


def test_a_logged_put_lets_go_of_its_source() -> None:
    """The request itself is not kept in memory for the horizon."""
    log = ReplayLog(10)
    logged = put(1)
    logged.source = object()
    log.add(logged, 0.0, 1)
    assert logged.source is None
    assert not logged.fresh  # known to itself: that makes no duplicate


def test_the_log_is_bounded_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Past the bound the oldest go, with one warning that names DQ_ROLLBACK_HORIZON."""
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
    log.add(put(30, payload=b"x" * 100), 0.0, 1)  # what was taken does not count any more
    assert len(log.take()) == 1


def test_a_logged_put_outlives_its_parents_lease_however_often_it_is_replayed() -> None:
    """It was confirmed, its parent is done: nobody else brings it if Redis has forgotten it, even twice."""
    log, outbox = ReplayLog(10), Outbox()
    fed = put(1)
    fed.once, fed.parent = True, b"lease of it."
    log.add(fed, 0.0, 1)
    outbox.replay(log.take(), ())  # Redis was rolled back
    outbox.replay(log.take(), ())  # and older once more, before the first exchange
    assert outbox.prefix() == [fed]


def test_a_put_that_ends_with_its_parents_lease_is_dropped_with_it() -> None:
    """Unconfirmed: who has the lease now puts it, and another put of it would be a second one."""
    outbox, fed = Outbox(), put(1)
    fed.once, fed.parent = True, b"lease of it."
    outbox.append(fed)
    outbox.replay([], (b"lease of it.",))
    assert outbox.prefix() == [fed]
    outbox.replay([], ())
    assert (outbox.prefix(), len(outbox), outbox.puts) == ([], 0, 0)


def test_the_log_holds_what_a_deep_roll_back_has_forgotten() -> None:
    """What retired under a later exchange than Redis knows is neither stored nor in the log."""
    log = ReplayLog(10)
    child = put(2)
    child.parent = entry_id(9)
    for seq, (each, confirmed_at) in enumerate(((put(1), 0.0), (child, 0.0), (put(3), 9.0)), 1):
        log.add(each, confirmed_at, seq)
    assert log.forgot(None) == log.forgot(0) == (False, False)  # all of it is in the log
    log.retire(5.0)
    assert log.forgot(0) == (False, False)
    log.retire(10.0)
    assert log.forgot(2) == log.forgot(3) == (False, False)
    assert log.forgot(1) == (True, False)  # only the child: its parent brings it again
    assert log.forgot(0) == log.forgot(None) == (True, True)
    log.begin_anew("first")
    assert log.forgot(0) == (False, False)
    assert log.forgot(None) == (True, True)  # an id that Redis does not know: from before that
    # It knows an id before: what was retired under the oldest is there, or is not; nothing was since.
    log.begin_anew("second")
    assert log.former_ids == ["first", "second"]
    assert log.forgot(-2 - 2**52) == (False, False)
    assert log.forgot(-2 - 2) == log.forgot(-2 - 3) == (False, False)
    assert log.forgot(-2 - 1) == (True, False)
    assert log.forgot(-2) == (True, True)
