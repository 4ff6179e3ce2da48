"""The page budget of a run limits its entries in flight plus the sent requests that are done or failed."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.model import Terms
from support.live_frontier import HandWorker, ack, fail, numbers, put

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def rich(worker: HandWorker) -> HandWorker:
    """Return a worker of a crawl in which ten entries wait."""
    worker.exchange(*(put(n) for n in range(1, 11)), seeding=1)
    return worker


def test_no_more_entries_are_leased_than_the_budget_allows(rich: HandWorker) -> None:
    """Entries in flight, done and failed all count against the budget."""
    terms = Terms(max_pages=3)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2, 3]
    assert numbers(rich.exchange(ack(1), fail(2), want=9, terms=terms)) == []
    assert numbers(rich.exchange(ack(3), want=9, terms=terms)) == []
    assert numbers(rich.exchange(want=9, terms=Terms(max_pages=5))) == [4, 5]
    assert numbers(rich.exchange(want=2)) == [6, 7]


def test_requests_that_were_never_sent_do_not_count(rich: HandWorker) -> None:
    """A middleware ended these requests before they were sent. So they do not count as pages."""
    terms = Terms(max_pages=2)
    assert numbers(rich.exchange(want=9, terms=terms)) == [1, 2]
    ended = ack(1, never_sent=True), fail(2, never_sent=True)
    receipt = rich.exchange(*ended, want=9, terms=terms)
    assert numbers(receipt) == [3, 4]
    assert (receipt.census.done, receipt.census.failed, receipt.census.pages) == (1, 1, 0)
    assert numbers(rich.exchange(ack(3), want=9, terms=terms)) == []
