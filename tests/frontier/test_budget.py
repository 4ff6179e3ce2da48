"""How many entries of a run are leased at most: entries in flight, and requests sent and done or failed."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.model import Terms
from support.live_frontier import HandWorker, ack, fail, numbers, put

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


def test_what_no_site_got_does_not_count(rich: HandWorker) -> None:
    """A middleware has ended it. It is done or failed all the same."""
    terms = Terms(max_pages=2)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2]
    ended = ack(1, never_sent=True), fail(2, never_sent=True)
    receipt = rich.exchange(*ended, want=9, terms=terms)
    assert numbers(receipt) == [3, 4]
    assert (receipt.census.done, receipt.census.failed, receipt.census.pages) == (1, 1, 0)
    assert numbers(rich.exchange(ack(3), want=9, terms=terms)) == []
