"""Stats are summed once, even if a report is repeated. Untrusted bytes affect at most one stat."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.frontier import shared_stats
from scrapy_dq.frontier.wire import pack_tally
from support.live_frontier import HandWorker, LiveFrontier

Delta = tuple[str, str, Any]


class Teller:
    """Reports changes of stats, and numbers these reports (tallies) as a worker does."""

    def __init__(self, live: LiveFrontier, worker: HandWorker, source: str = "source") -> None:
        self.live, self.worker, self.source, self.number = live, worker, source, 0

    def tell(self, *deltas: Delta, **other: Any) -> str:
        """Report *deltas* under the next number. *other* replaces arguments of `Frontier.tally`."""
        self.number += 1
        args = {"epoch": self.worker.epoch, "run": self.worker.run, "number": self.number} | other
        return str(self.live.call("tally", self.source, *args.values(), pack_tally(deltas)))


@pytest.fixture
def teller(live: LiveFrontier, worker: HandWorker) -> Teller:
    return Teller(live, worker)


def read(live: LiveFrontier) -> dict[str, int | float]:
    return shared_stats(live.redis, live.crawl)


def test_the_counts_of_all_workers_are_summed(live: LiveFrontier, teller: Teller, other: HandWorker) -> None:
    """Reports add up integers and fractions, and keep the largest or smallest value."""
    second = Teller(live, other, "other")
    assert read(live) == {}
    assert teller.tell(("sum", "a", 3), ("sum", "b", 0.5), ("max", "c", 7), ("min", "d", 2)) == "OK"
    assert second.tell(("sum", "a", 4), ("sum", "b", 1), ("max", "c", 5.5), ("min", "d", 1.5)) == "OK"
    assert teller.tell(("sum", "a", -1), ("sum", "b", 0.25), ("max", "c", 9.5), ("min", "d", 3)) == "OK"
    assert read(live) == {"a": 6, "b": 1.75, "c": 9.5, "d": 1.5}
    assert {name: type(number) for name, number in read(live).items()} == {
        "a": int, "b": float, "c": float, "d": float,
    }  # fmt: skip


def test_a_repeat_counts_once(live: LiveFrontier, teller: Teller) -> None:
    """A report with the last number again is a repeat after a lost reply. Each worker has its own numbers."""
    for _ in range(3):
        assert teller.tell(("sum", "a", 1), number=1) == "OK"
    assert read(live) == {"a": 1}
    assert teller.tell(("sum", "a", 1), number=2) == "OK"
    assert teller.tell(("sum", "a", 1), number=1) == "OK"
    assert Teller(live, teller.worker, "other").tell(("sum", "a", 1), number=1) == "OK"
    assert read(live) == {"a": 3}


def test_a_repeat_after_a_rejoin_counts_once(live: LiveFrontier, teller: Teller) -> None:
    """After the rejoin the worker has another id, but the source of the counts is the same."""
    teller.tell(("sum", "a", 1), number=1)
    teller.worker.rejoin("anew")
    assert teller.tell(("sum", "a", 1), number=1) == "OK"
    assert teller.tell(("sum", "a", 1), number=2) == "OK"
    assert read(live) == {"a": 2}


@pytest.mark.parametrize(
    ("stale", "answer"),
    [({"epoch": "another"}, "LOST"), ({"run": 1}, "RESYNC"), ({"run": -1}, "FINISHED")],
)
def test_a_stale_tally_changes_nothing(
    live: LiveFrontier, teller: Teller, stale: dict[str, Any], answer: str
) -> None:
    """The tally belongs to another frontier, to a run that Redis does not know, or to a finished run."""
    teller.tell(("sum", "a", 1))
    before = live.dump()
    assert teller.tell(("sum", "a", 1), **stale) == answer
    assert live.dump() == before


def test_sums_are_kept_until_the_next_run_begins(live: LiveFrontier, teller: Teller) -> None:
    """A user can read the sums after the end, including counts that a worker reports after its leave."""
    teller.worker.exchange()
    teller.tell(("sum", "a", 1))
    teller.worker.leave()
    teller.tell(("sum", "a", 1))
    assert live.key_names() == {"meta", "stats"}
    assert read(live) == {"a": 2}
    HandWorker(live, "next")
    assert read(live) == {}
    assert teller.tell(("sum", "a", 1)) == "FINISHED"


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_whole_numbers_are_exact_to_64_bits(live: LiveFrontier, teller: Teller, number: int) -> None:
    """A long crawl may receive that many bytes. A Lua number would be rounded."""
    teller.tell(("sum", "a", number), ("max", "b", number), ("min", "c", number))
    assert read(live) == {"a": number, "b": number, "c": number}


def test_a_sum_that_overflows_continues_as_a_broken_number(live: LiveFrontier, teller: Teller) -> None:
    """The sum becomes a floating-point number. It does not become negative, and no call fails."""
    for _ in range(2):
        assert teller.tell(("sum", "a", 2**63 - 1), ("sum", "b", 10**30), ("sum", "c", 1e300)) == "OK"
    assert read(live) == pytest.approx({"a": 2.0**64, "b": 2e30, "c": 2e300})
