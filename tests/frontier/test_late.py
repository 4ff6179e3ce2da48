"""A worker is absent when its run finishes, and then returns. What does Redis answer, and what is stored?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from scrapy_dq.frontier.model import Admission, Identity, Status
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.identity import own_identity
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put
from support.redis_server import RedisServer
from support.spoken import Spoken

ARGS = replace(IDENTITY, starts="args", spider_args="args", run_name="job")
OTHER = replace(ARGS, starts="other", spider_args="other")


def start(number: int) -> Put:
    return put(number, start=True, admission=Admission.SEED)


class Late:
    """A worker's protocol, whose exchanges the test makes one by one."""

    def __init__(self, live: LiveFrontier, crawl: Identity) -> None:
        self._run = live._loop.run_until_complete
        self._spoken = Spoken(live.frontier, crawl, 0.0)
        self.listener, self.protocol = self._spoken.listener, self._spoken.protocol
        self._run(self._spoken.join("a new epoch"))

    def speak(self, *puts: Put, times: int = 1) -> None:
        for each in puts:
            self.protocol.outbox.append(each)
        for _ in range(times):
            self._run(self._spoken.exchange(0))

    def leave(self) -> None:
        self._run(self._spoken.leave())


def finish_without(late: Late, other: HandWorker) -> None:
    """Let *late* begin its start(). Then *other* declares it dead and finishes the run."""
    late.speak(start(1))
    other.exchange(start(1), seeding=1)
    other.fence(late.protocol.id)
    other.drain(late.protocol.id)
    other.take(1)
    assert other.exchange(ack(1)).status is Status.FINISHED


def test_a_late_copy_of_a_join_takes_no_worker_into_the_next_run(live: LiveFrontier) -> None:
    """The worker learns that its run is over. In the next run, its start() would count as incomplete."""
    other = HandWorker(live, "other", replace(ARGS, run_name=""))
    late = Late(live, replace(ARGS, run_name=""))
    finish_without(late, other)
    other.leave()
    live.redis.hdel(live.key("meta"), "crawled")  # as if another worker had crawled since
    late._run(live.frontier.join(late.protocol.id, own_identity(), "new", late._spoken.crawl))
    assert live.redis.hget(live.key("meta"), "run") == b"1"
    late.speak(start(2), times=3)
    assert (late.protocol.over, late.protocol.run) == (True, 0)


def test_a_late_worker_that_listens_learns_that_its_run_is_over(live: LiveFrontier) -> None:
    """A listening worker was frozen in its start() while another worker finished the run.

    While its start() runs, the worker may still put, so its run is finished, but not over. When the worker
    only listens, its run is over, because Redis gives it no start payloads of a finished run.
    """
    other = HandWorker(live, "other", ARGS)
    late = Late(live, ARGS)
    late.protocol.listening = True
    finish_without(late, other)
    late.speak(times=3)  # RESYNC, the rejoin, and the puts of its log
    assert late.protocol.finished
    assert not late.protocol.over
    late.protocol.seeding = 0
    late.speak()
    assert late.protocol.over


def test_a_late_worker_with_an_empty_outbox_learns_that_its_run_is_over(live: LiveFrontier) -> None:
    """The worker knows that the run is finished, but its spider does not close (DontCloseSpider)."""
    other = HandWorker(live, "other", ARGS)
    late = Late(live, ARGS)
    late.protocol.seeding = 0
    other.exchange()
    late.speak()
    assert late.protocol.finished
    other.fence(late.protocol.id)
    other.drain(late.protocol.id)
    late.speak(times=2)
    assert late.protocol.over


def test_a_run_whose_start_must_run_again_is_not_over(live: LiveFrontier) -> None:
    """Redis was rolled back further than the worker's log reaches, and another worker finished the run.

    The worker's rejoin opens the run again, and a worker with the same arguments continues the run.
    """
    other = HandWorker(live, "other", ARGS)
    other.exchange(start(8), seeding=1)
    snapshot = live.dump()
    late = Late(live, OTHER)
    late.speak(start(7), times=2)
    late.speak(start(8))
    live.roll_back(snapshot)
    other.take(1)
    assert other.exchange(ack(8)).status is Status.FINISHED
    late.speak()
    while late.protocol.under_way or late.protocol.outbox:
        late.speak()
    late.listener.rolled_back.assert_called_once_with(True)
    late.leave()
    other.leave()
    again = HandWorker(live, "again", OTHER)
    assert again.joined.status is Status.OK
    assert again.exchange(start(7), seeding=0).dropped == ()


def test_a_run_can_finish_in_a_full_redis(start_redis: Callable[..., RedisServer]) -> None:
    """The first write of the exchange needs no memory. After it, Redis lets the script exceed maxmemory."""
    with closing(LiveFrontier(start_redis().url, "crawl")) as live:
        worker, other = HandWorker(live, "worker"), HandWorker(live, "other")
        worker.exchange()
        other.exchange()
        live.redis.config_set("maxmemory", 1)
        assert other.exchange().status is Status.FINISHED
        live.redis.config_set("maxmemory", 0)
