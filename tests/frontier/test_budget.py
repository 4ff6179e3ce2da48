"""How many entries of a run are leased at most: entries in flight, and requests sent and done or failed."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.model import Terms
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, entry_id, fail, numbers, put, release

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def rich(worker: HandWorker) -> HandWorker:
    """A worker of a crawl in which ten entries wait."""
    worker.exchange(*(put(n) for n in range(1, 11)), seeding=1)
    return worker


def test_no_more_is_leased(rich: HandWorker) -> None:
    """In flight, done and failed: three are three, whatever became of them."""
    terms = Terms(max_pages=3)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2, 3]
    assert numbers(rich.exchange(ack(1), fail(2), want=9, terms=terms)) == []
    assert numbers(rich.exchange(ack(3), want=9, terms=terms)) == []
    assert numbers(rich.exchange(want=9, terms=Terms(max_pages=5))) == [4, 5]
    assert numbers(rich.exchange(want=2)) == [6, 7]


def test_what_comes_back_counts_no_more(rich: HandWorker) -> None:
    """Nor does a dead letter."""
    terms = Terms(max_pages=2)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2]
    assert numbers(rich.exchange(release(1), want=9, terms=terms)) == [1]
    assert numbers(rich.exchange(bury(2), want=9, terms=terms)) == [3]


def test_what_no_site_got_does_not_count(rich: HandWorker) -> None:
    """A middleware has ended it. It is done or failed all the same."""
    terms = Terms(max_pages=2)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2]
    ended = ack(1, never_sent=True), fail(2, never_sent=True)
    receipt = rich.exchange(*ended, want=9, terms=terms)
    assert numbers(receipt) == [3, 4]
    assert (receipt.census.done, receipt.census.failed, receipt.census.pages) == (1, 1, 0)
    assert numbers(rich.exchange(ack(3), want=9, terms=terms)) == []


def test_all_workers_share_it(live: LiveFrontier, rich: HandWorker) -> None:
    """Also what a dead one had."""
    other, terms = HandWorker(live, "other"), Terms(max_pages=4)
    assert numbers(rich.exchange(want=3, terms=terms)) == [1, 2, 3]
    assert numbers(other.exchange(want=9, terms=terms)) == [4]
    live.call("fence", "worker", rich.epoch, rich.run)
    live.call("drain", "worker", rich.epoch, rich.run, 10, 3)
    got = other.take(9, terms)
    assert len(got) == 3
    assert other.held >= {entry_id(4)}


@pytest.mark.parametrize("most", [0, 2])
def test_a_number_below_what_is_there_leases_nothing(rich: HandWorker, most: int) -> None:
    """It was made smaller meanwhile."""
    assert len(rich.exchange(want=3).leases) == 3
    assert not rich.exchange(want=9, terms=Terms(max_pages=most)).leases
