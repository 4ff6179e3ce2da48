"""The rules of docs/internals/shards.md, tested on protocols without Redis and without an event loop.

A worker's level is the state of seeding that it reports to home (shard 0). While the level is raised (above
0), home cannot finish the run.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest

from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.calls import Demand, Exchange, Rejoin
from scrapy_dq.frontier.model import UNFINISHED, Census, Commands, Lease, Seeding, SpillLost, Status
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.sharding.closing import Level, TerminationDetector
from scrapy_dq.sharding.protocol import ShardProtocol, connect_protocols
from unit.test_protocol import HORIZON_S, put

SUSPECT = Lease(b"%012d" % 7, 1, b"payload", suspect=True)


@pytest.fixture
def home() -> ShardProtocol:
    """Return the protocol in which a worker of two shards talks to home."""
    made = [
        ShardProtocol("crawl", Mock(), Outbox(), HORIZON_S, new_id=lambda: "worker", random_bytes=bytes)
        for _ in range(2)
    ]
    connect_protocols(made)
    for each in made:
        each.epoch = "epoch"
    return made[0]


def exchange(of: ShardProtocol, now: float, want: int = 0) -> Exchange:
    """Compose an exchange, and leave it unanswered."""
    call = of.compose(now, Demand(want))
    assert isinstance(call, Exchange)
    return call


def applied(of: ShardProtocol, now: float, *leases: Lease) -> None:
    of.received(Receipt(Status.OK, applied=True, leases=leases, commands=Commands()), now)


def logged(of: ShardProtocol, now: float) -> Put:
    """Store a put at *now*."""
    made = put(1)
    of.outbox.append(made)
    exchange(of, now)
    applied(of, now)
    assert list(of.log.puts()) == [made]
    return made


def test_a_level_stays_until_its_raise_is_certain_at_home() -> None:
    """Otherwise a roll-back could undo the raise, and home could finish the run without the put (rule 3)."""
    home, shard = SimpleNamespace(raised_at=1.0, raise_retired=False), SimpleNamespace(retired=0)
    protocols: Any = [home, shard]
    level = Level(protocols)
    level.put(1, 5)
    shard.retired = 5
    assert level.needed()
    home.raise_retired = True
    assert not level.needed()


def test_a_level_stays_until_its_puts_are_certain() -> None:
    protocols: Any = [SimpleNamespace(raised_at=1.0, raise_retired=True), SimpleNamespace(retired=4)]
    level = Level(protocols)
    level.put(1, 5)
    assert level.needed()
    protocols[1].retired = 5
    assert not level.needed()


def test_a_put_without_a_parent_waits_for_home(home: ShardProtocol) -> None:
    """Until home has confirmed the level, other workers could finish the run without this put (rule 3)."""
    (other,) = home.others
    level = Level([home, other])
    home.raised_at = None
    other.outbox.append(put(1))
    level.put(1, other.outbox.last_put)
    exchange(other, 1000.0)
    assert other.held_back
    applied(other, 1000.0)
    exchange(home, 1000.0)
    applied(home, 1000.0)
    exchange(other, 1001.0)
    assert not other.held_back


def test_a_level_counts_as_lowered_once_the_lower_level_is_sent(home: ShardProtocol) -> None:
    """Home may already have got the lower level, so no put may rely on the former level (rule 3)."""
    exchange(home, 1000.0)
    applied(home, 1000.0)
    assert home.raised_at == 1000.0
    home.seeding = Seeding.DONE
    assert exchange(home, 1001.0).seeding == Seeding.DONE
    assert home.raised_at is None


def test_a_home_that_is_finished_retires_its_log(home: ShardProtocol) -> None:
    """A rolled-back shard may lease finished pages again. These leases wait for an empty log (rule 5)."""
    logged(home, 1000.0)
    finished = Receipt(Status.FINISHED, commands=Commands())
    exchange(home, 1000.0 + HORIZON_S / 2)
    home.received(finished, 1000.0 + HORIZON_S / 2)
    assert home.log
    exchange(home, 1001.0 + HORIZON_S)
    home.received(finished, 1001.0 + HORIZON_S)
    assert not home.log


def may_bring_suspects(call: Exchange) -> bool:
    terms = msgpack.unpackb(call.terms)
    return not (len(terms) > 7 and terms[7])


def test_one_shard_at_a_time_may_bring_a_suspect(home: ShardProtocol) -> None:
    """If a worker held several suspects, its death would charge all of them.

    So if one shard was asked for leases or has brought a suspect, the other shards must not bring one.
    """
    (other,) = home.others
    assert may_bring_suspects(exchange(home, 1000.0, want=1))
    assert not may_bring_suspects(exchange(other, 1000.0, want=1))
    applied(other, 1000.0)
    applied(home, 1000.0, SUSPECT)
    assert not may_bring_suspects(exchange(other, 1001.0, want=1))
    applied(other, 1001.0)
    home.leases.confirmed(SUSPECT.entry_id)
    assert may_bring_suspects(exchange(other, 1002.0, want=1))


def test_a_lost_outbox_gives_up_the_leases_of_all_shards(
    home: ShardProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost put may be a link of any page, so no page may be acked, even if its end was deferred."""
    (other,) = home.others
    exchange(other, 1000.0, want=1)
    applied(other, 1000.0, SUSPECT)
    home.common.give_up_deferred = Mock()
    monkeypatch.setattr(home.outbox, "prefix", Mock(side_effect=SpillLost("gone")))
    assert home.compose(1001.0, Demand()) is None
    home.common.give_up_deferred.assert_called_once_with()
    assert len(other.leases) == 0
    call = other.compose(1002.0, Demand())
    assert isinstance(call, Rejoin)
    assert call.held == []


class Collect:
    """A worker of three empty shards that collects answers to find the end of the run."""

    def __init__(self) -> None:
        self.protocols = [
            SimpleNamespace(
                census=Census(version=10), applied=1, composed=1, id="worker", lost=False, damage="",
                outbox=(), leases=(), finished=False, finish_at=UNFINISHED,
            )
            for _ in range(3)
        ]  # fmt: skip
        protocols: Any = self.protocols
        self.asked: list[int] = []
        self.detector = TerminationDetector(protocols, self.asked.append)
        for shard in (1, 2, 0):
            self.answers(shard)

    def answers(self, shard: int, version: int = 10) -> None:
        """Let a shard answer that it is empty. `asked` then lists the shards that the worker asks next."""
        of = self.protocols[shard]
        of.census = Census(version=version)
        for each in self.protocols:
            each.composed += 1
        of.applied = of.composed
        self.asked.clear()
        self.detector.step(shard, quiet=True)

    @property
    def home_may_finish(self) -> bool:
        return self.protocols[0].finish_at != UNFINISHED


def test_all_shards_answer_twice_before_home_may_finish() -> None:
    collect = Collect()
    assert collect.asked == [0]
    collect.answers(0)
    assert collect.asked == [1, 2]
    collect.answers(1)
    assert not collect.asked
    assert not collect.home_may_finish
    collect.answers(2)
    assert collect.asked == [0]
    assert collect.home_may_finish


def test_a_shard_that_changed_between_its_answers_restarts_the_collect() -> None:
    """A put arrived in between. The work may have moved on to a shard that had already answered (rule 4)."""
    collect = Collect()
    collect.answers(0)
    collect.answers(1, version=11)
    collect.answers(2)
    assert not collect.home_may_finish
