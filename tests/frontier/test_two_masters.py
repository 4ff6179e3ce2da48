"""One worker's calls reach two masters in turn: the old master, which is cut off, and its successor."""

from __future__ import annotations

from itertools import count
from unittest.mock import Mock
from uuid import uuid4

import pytest

from scrapy_dq.frontier.calls import Demand, Rejoin
from scrapy_dq.frontier.model import Seeding
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from scrapy_dq.frontier.worker.replay_log import FORMER_IDS
from support.live_frontier import IDENTITY, LiveFrontier, put

HORIZON_S = 10.0
HOST = {"host": "here"}


class Masters:
    """Two states of one frontier, one of them in Redis, and a worker. The test sets the time."""

    def __init__(self, live: LiveFrontier) -> None:
        self.live = live
        ids = count()
        self.listener = Mock()
        self.worker = WorkerProtocol(
            live.crawl, self.listener, Outbox(), HORIZON_S,
            new_id=lambda: f"worker-{next(ids)}", random_bytes=bytes,
        )  # fmt: skip
        joined = live.call("join", self.worker.id, HOST, uuid4().hex, IDENTITY)
        self.worker.joined(joined, 0.0)
        self.other: dict[bytes, bytes] = {}
        self._numbers = count(1)

    def put(self, now: float, *, in_turn: bool = False) -> None:
        """Put a request without a parent, and make calls until it is stored.

        Args:
            in_turn: whether each rejoin reaches the other master.
        """
        worker, call = self.worker, None
        worker.outbox.append(put(next(self._numbers)))
        while worker.has_unconfirmed:
            call = worker.compose(now, Demand())
            if in_turn and isinstance(call, Rejoin):
                self.swap()
            if isinstance(call, Rejoin):
                self.rejoin = call
                worker.rejoined(self.live.call("rejoin", call, HOST, IDENTITY))
            else:
                worker.received(self.live.call("exchange", call), now)

    def part(self) -> None:
        """Separate the two masters from now on."""
        self.other = self._stored()

    def swap(self) -> None:
        """Send the next calls to the other master."""
        stored = self._stored()
        self.live.redis.delete(*stored)
        for name, value in self.other.items():
            self.live.redis.restore(name, 0, value)
        self.other = stored

    def _stored(self) -> dict[bytes, bytes]:
        return {name: self.live.redis.dump(name) for name in self.live.redis.keys(f"{self.live.key('')}*")}


@pytest.fixture
def masters(live: LiveFrontier) -> Masters:
    """Return two masters with equal data: a request older than the horizon, and a newer one."""
    made = Masters(live)
    made.put(0.0)
    made.put(HORIZON_S + 1)
    made.part()
    return made


def test_no_put_counts_as_lost_within_the_horizon(masters: Masters) -> None:
    """Each master knows one id of the worker, and the puts under this id. The log has the other puts."""
    for turn in range(6):
        masters.put(HORIZON_S + 2 + turn)
        masters.swap()
    masters.listener.rolled_back.assert_not_called()
    assert masters.worker.seeding == Seeding.ACTIVE
    assert len(masters.live.state()["entries"]) >= 7


def test_a_worker_continues_if_a_master_knows_none_of_its_last_ids(masters: Masters) -> None:
    """Such a master refuses the exchange, and the other master answers the rejoin that follows."""
    for _ in range(FORMER_IDS):
        masters.put(HORIZON_S + 2, in_turn=True)
        masters.swap()
    masters.put(HORIZON_S + 2)
    masters.listener.rolled_back.assert_not_called()
    assert masters.worker.seeding == Seeding.ACTIVE
    assert len(masters.live.state()["entries"]) >= FORMER_IDS


def test_a_late_copy_of_a_rejoin_does_not_hide_the_former_ids(masters: Masters) -> None:
    """One master answers the rejoin. The other master gets a late copy of it, and later the next rejoin."""
    masters.put(HORIZON_S + 2)
    masters.swap()
    masters.put(HORIZON_S + 2, in_turn=True)
    masters.put(HORIZON_S + 2)
    masters.swap()
    masters.live.call("rejoin", masters.rejoin, HOST, IDENTITY)
    masters.put(HORIZON_S + 2)
    masters.listener.rolled_back.assert_not_called()
    assert masters.worker.seeding == Seeding.ACTIVE


def test_a_put_that_only_the_other_master_has_is_lost_after_the_horizon(masters: Masters) -> None:
    """The log no longer has the request, so start() must run again."""
    masters.swap()
    masters.put(HORIZON_S + 2)
    masters.put(2 * HORIZON_S + 3)
    masters.swap()
    masters.put(2 * HORIZON_S + 4)
    masters.listener.rolled_back.assert_called_once_with(True)
    assert masters.worker.seeding == Seeding.AGAIN
