"""Guards of the frontier that no other frontier test covers."""

from __future__ import annotations

from scrapy_dq.frontier.model import Status
from support.live_frontier import HandWorker, ack, put


def test_a_worker_that_seeds_again_keeps_the_run_open(worker: HandWorker) -> None:
    """After its start(), a worker may have more puts without a parent than fit into one exchange.

    Until all of them are stored, its exchanges report again that it is seeding (level 1).
    """
    worker.exchange(put(1), put(2))
    assert worker.take(2) == [1, 2]
    worker.exchange(ack(1))
    assert worker.exchange(ack(2), seeding=1).status is Status.OK
    assert worker.exchange().status is Status.FINISHED
