"""Redis refuses a put if too many entries wait, and drops a put that another scheduler has seen.

The put itself states its bound. The fingerprints of the other scheduler were adopted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier.model import Admission, FrontierRefused
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, numbers, put

ADOPTED = b"\x01" * 20


def bounded(n: int, most: int, **more: float) -> object:
    move = put(n, **more)  # type: ignore[arg-type]
    move.most = most
    return move


def known(n: int, name: bytes = ADOPTED) -> object:
    move = put(n, admission=Admission.SEEN)
    move.known_as = name
    return move


def test_a_put_past_its_bound_is_refused(live: LiveFrontier, worker: HandWorker) -> None:
    """Redis counts the waiting and delayed entries before each put, even within one exchange."""
    receipt = worker.exchange(
        bounded(1, 3), bounded(2, 3, due_in=1000.0), bounded(3, 3), bounded(4, 3), put(5)
    )
    assert (receipt.refused, receipt.dropped) == ((3,), ())
    assert receipt.census.waiting + receipt.census.delayed == 4
    worker.take(9)
    assert worker.exchange(bounded(6, 2)).refused == ()  # entries in flight do not count


def test_a_repeat_of_a_stored_put_counts_as_seen_and_is_not_refused(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The put is stored, so the answer must not report it as refused."""
    worker.exchange(bounded(1, 1))
    receipt = worker.exchange(bounded(1, 1), bounded(2, 1))
    assert (receipt.dropped, receipt.refused) == ((0,), (1,))
    assert worker.send(worker.last) == receipt


def test_adopted_fingerprints_count_as_seen(live: LiveFrontier, worker: HandWorker) -> None:
    """A request that another scheduler has seen is dropped, and not added to `seen`. Others are stored."""
    assert live.call("adopt", worker.epoch, worker.run, "", 1, [ADOPTED, b"\x02" * 20])[0] == 2
    assert live.call("adopt", worker.epoch, worker.run, "", 1, [ADOPTED])[0] == 0
    receipt = worker.exchange(known(1), known(2, b"\x03" * 20), put(3), want=9)
    assert receipt.dropped == (0,)
    assert sorted(numbers(receipt)) == [2, 3]
    assert receipt.census.seen == 1
    assert HandWorker(live, "other").joined.adopted


def test_adopted_fingerprints_are_kept_as_long_as_seen(live: LiveFrontier, worker: HandWorker) -> None:
    """A run with SCHEDULER_PERSIST keeps adopted fingerprints, and a run without it deletes them."""
    live.call("adopt", worker.epoch, worker.run, "", 1, [ADOPTED])
    worker.exchange(known(2, b"\x03" * 20), want=1)
    worker.exchange(ack(2))
    worker.leave(keep_seen=True)
    again = HandWorker(live, "again", replace(IDENTITY, keep_seen=True))
    assert again.joined.adopted
    assert again.run == worker.run + 1
    again.exchange()
    again.leave()
    assert "adopted" not in live.key_names()


def test_an_adoption_cannot_continue_in_another_run(live: LiveFrontier, worker: HandWorker) -> None:
    """An adoption with another epoch, or in a run that is over, stores nothing."""
    with pytest.raises(FrontierRefused, match="LOST"):
        live.call("adopt", "another", worker.run, "", 1, [ADOPTED])
    with pytest.raises(FrontierRefused, match="FINISHED"):
        live.call("adopt", worker.epoch, worker.run - 1, "", 1, [ADOPTED])
    assert "adopted" not in live.key_names()


def test_a_gap_in_the_numbers_of_an_adoption_shows_a_roll_back(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """A repeat of a call has the same number. A gap between two numbers shows that Redis lost a call."""

    def adopt(number: int) -> bool:
        return live.call("adopt", worker.epoch, worker.run, worker.worker_id, number, [ADOPTED])[1]

    before = live.dump()
    assert [adopt(number) for number in (1, 2, 2)] == [True] * 3
    live.roll_back(before)
    assert [adopt(number) for number in (3, 4)] == [False, True]
    worker.leave()
    assert not adopt(5)
