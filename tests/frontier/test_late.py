"""A worker that was absent when its run was finished: what it learns, and what the next crawl finds."""

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
    """A worker's protocol, whose exchanges a test makes one by one."""

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
    """Have *other* declare the worker dead that has begun its start(), and finish the run."""
    late.speak(start(1))
    other.exchange(start(1), seeding=1)
    other.fence(late.protocol.id)
    other.drain(late.protocol.id)
    other.take(1)
    assert other.exchange(ack(1)).status is Status.FINISHED


def test_a_late_copy_of_its_join_takes_no_worker_into_the_next_run(live: LiveFrontier) -> None:
    """It closes with the run that it has been in; with the next one, its start() would be missing."""
    other = HandWorker(live, "other", replace(ARGS, run_name=""))
    late = Late(live, replace(ARGS, run_name=""))
    finish_without(late, other)
    other.leave()
    live.redis.hdel(live.key("meta"), "crawled")  # another one has crawled it since
    late._run(live.frontier.join(late.protocol.id, own_identity(), "new", late._spoken.crawl))
    assert live.redis.hget(live.key("meta"), "run") == b"1"
    late.speak(start(2), times=3)
    assert (late.protocol.over, late.protocol.run) == (True, 0)


def test_one_that_listens_is_told_that_it_is_over(live: LiveFrontier) -> None:
    """Fed, and frozen in its start() while others finished the run: it finds it finished, and then over."""
    other = HandWorker(live, "other", ARGS)
    late = Late(live, ARGS)
    late.protocol.listening = True
    finish_without(late, other)
    late.speak(times=3)  # out of step, the rejoin, and what it has in its log
    assert late.protocol.finished
    assert not late.protocol.over
    late.protocol.seeding = 0
    late.speak()
    assert late.protocol.over


def test_one_with_an_empty_outbox_is_told_that_the_run_is_over(live: LiveFrontier) -> None:
    """It knew that the run is finished, and is kept open by its spider (DontCloseSpider)."""
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


def test_a_start_that_has_to_run_again_is_not_over(live: LiveFrontier) -> None:
    """Redis was rolled back further than its log, and others finished the run: the same command continues."""
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


def test_a_full_redis_tells_that_the_run_is_finished(start_redis: Callable[..., RedisServer]) -> None:
    """That is noted by a script that may go past maxmemory."""
    with closing(LiveFrontier(start_redis().url, "crawl")) as live:
        worker, other = HandWorker(live, "worker"), HandWorker(live, "other")
        worker.exchange()
        other.exchange()
        live.redis.config_set("maxmemory", 1)
        assert other.exchange().status is Status.FINISHED
        live.redis.config_set("maxmemory", 0)
