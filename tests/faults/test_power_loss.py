"""Redis comes back without its newest data. No page is lost, and only forgotten work is repeated."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable

import pytest

from scrapy_dq.frontier import keys
from support import noted_frontier, outages
from support.fault_crawl import FaultCrawl
from support.fault_spiders import EXHAUSTED, GATHERED, GO, SLOW_START, start_together
from support.given import Figures, MakeCrawl, StartRedis
from support.redis_server import Kind
from support.stored import stored_state
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker


class Losses:
    """Rolls Redis back, and counts the pages that may be processed twice."""

    def __init__(self, crawl: FaultCrawl) -> None:
        self._crawl = crawl
        self.count = 0
        self.may_repeat = 0
        """The pages done in the forgotten time, plus the leases at the start and at the end of this time."""

    def lose(self, during: Callable[[], object]) -> None:
        """Run *during*, let Redis lose all writes of this time, and wait until all workers have rejoined."""
        crawl = self._crawl
        leases, done = crawl.leases(), crawl.done.total()
        before = self._exchanges()
        snapshot = crawl.redis.snapshot()
        during()
        # On a busy machine, a worker may have made no exchange yet. Such a worker would not have to rejoin.
        wait_until(
            lambda: all(now > before.get(name, -1) for name, now in self._exchanges().items()),
            "each worker has made an exchange", 60,
        )  # fmt: skip
        leases += crawl.leases()
        crawl.redis.roll_back(snapshot)
        self.count += 1
        for worker in crawl.live:
            wait_until(
                lambda w=worker: w.text.count(" continues as ") >= self.count, "the worker has rejoined"
            )
        self.may_repeat += leases + crawl.done.total() - done

    def _exchanges(self) -> dict[str, int]:
        """Return the number of the last exchange of each worker."""
        prefix = keys.prefix(self._crawl.project.name)
        with self._crawl.redis.client() as client:
            return {
                member.worker_id: int(client.hget(f"{prefix}worker:{member.worker_id}", "last_seq") or 0)
                for member in self._crawl.overview().members
            }


def assert_nothing_lost(crawl: FaultCrawl, workers: list[Worker], losses: Losses) -> None:
    crawl.end_whole(losses.may_repeat, losses=losses.count)
    for worker in workers:
        outages.assert_no_outage_logged(worker)
        # The restart of Redis is so short that a worker may not notice it.
        assert len(outages.outages(worker)) <= losses.count
        assert worker.stats["dq/rejoins"] >= losses.count


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.soak)])
def test_requests_that_redis_forgot_are_stored_again(times: int, fault_crawl: MakeCrawl) -> None:
    """Redis loses up to 1 s of a crawl. The crawl is completed, and repeats only the work of that second."""
    crawl = fault_crawl(
        site={"pages": 300 + 200 * times, "latency_s": 0.04},
        settings={"CONCURRENT_REQUESTS": 4},
        spider=GATHERED,
    )
    rng = random.Random(times)
    workers = start_together(crawl)
    losses = Losses(crawl)
    for number in range(times):
        crawl.wait_for_part(0.05 + 0.35 * number / times)
        seconds = rng.uniform(0.3, 1.0)
        losses.lose(lambda s=seconds: time.sleep(s))
    assert_nothing_lost(crawl, workers, losses)


def test_start_requests_that_redis_forgot_are_stored_again(fault_crawl: MakeCrawl) -> None:
    """Redis loses some of the requests from start(), while start() runs. All are processed in the end."""
    pages = 100
    # start() yields faster than the workers crawl, so the forgotten requests are not done yet.
    crawl = fault_crawl(
        site={"pages": pages, "fan_out": 0, "latency_s": 0.15},
        settings={"CONCURRENT_REQUESTS": 2, "PAGES": pages},
        spider=SLOW_START,
    )
    workers = start_together(crawl)
    losses = Losses(crawl)
    crawl.wait_for_part(0.1)
    losses.lose(lambda: time.sleep(0.7))
    assert not crawl.project.count(EXHAUSTED), "start() ended before the roll-back"
    assert_nothing_lost(crawl, workers, losses)


def test_a_worker_that_redis_forgot_continues(fault_crawl: MakeCrawl) -> None:
    """Redis is rolled back to a time before the second worker joined. The worker joins again."""
    crawl = fault_crawl(
        site={"pages": 250, "latency_s": 0.1},
        settings={"CONCURRENT_REQUESTS": 4},
        spider=GATHERED,
    )
    workers = start_together(crawl, 1)
    losses = Losses(crawl)
    crawl.wait_for_part(0.05)

    def second_worker_joins() -> None:
        workers.extend(crawl.start())
        wait_until(
            lambda: crawl.project.count(pids=[workers[1].pid]).total() >= 10,
            "the second worker has done 10 pages",
        )

    losses.lose(second_worker_joins)
    assert_nothing_lost(crawl, workers, losses)


def test_a_frontier_that_redis_forgot_completely_is_lost(fault_crawl: MakeCrawl) -> None:
    """Redis returns without the crawl. All workers close with frontier_lost. The next crawl is complete."""
    crawl = fault_crawl(site={"pages": 150}, spider=GATHERED)
    before = crawl.redis.snapshot()
    workers = start_together(crawl)
    crawl.wait_for_part(0.1)
    crawl.redis.roll_back(before)

    assert crawl.end(20).reasons == ("frontier_lost", "frontier_lost")

    assert all(len(outages.lines(worker, "CRITICAL")) == 1 for worker in workers)
    last = crawl.project.run_worker()
    assert last.close_reason == "finished"
    assert crawl.project.count(pids=[last.pid]) == dict.fromkeys(crawl.site.paths, 1)


@pytest.mark.parametrize("part", [0.9, 1.0], ids=["open", "finished"])
def test_workers_continue_a_run_whose_start_redis_forgot(part: float, fault_crawl: MakeCrawl) -> None:
    """Redis only knows the previous run, perhaps without its end. The workers continue their own run."""
    crawl = fault_crawl(
        site={"pages": 100, "latency_s": 0.05},
        settings={"CONCURRENT_REQUESTS": 4, "DQ_ROLLBACK_HORIZON": 60},
        spider=GATHERED,
    )
    (first,) = start_together(crawl, 1)
    crawl.wait_for_part(part)
    if part == 1:
        first.wait()
    tombstone = crawl.redis.snapshot()
    first.wait()
    (crawl.project.folder / GO).unlink()
    workers = start_together(crawl)
    pids = [worker.pid for worker in workers]
    wait_until(lambda: crawl.project.count(pids=pids).total() >= 20, "20 pages are done", 30)
    crawl.redis.roll_back(tombstone)

    verdict = crawl.end()
    done = crawl.project.count(pids=pids)
    crawl.note(pages=len(done), repeats=done.total() - len(done))

    assert verdict.reasons == ("finished",) * 3
    assert verdict.leases_left == 0
    assert set(done) == crawl.site.paths
    assert crawl.overview().run == 1
    for worker in workers if part == 1 else []:  # else they reclaim the first worker, which has ended
        outages.assert_no_outage_logged(worker)


# After the page's item is stored, the callback continues until the test ends it.
ITEMS = spider_of("""
    async def parse(self, response):
        self.record("start", page_path(response))
        while not os.path.exists("item"):
            await asyncio.sleep(0.01)
        yield {"path": page_path(response)}
        while not os.path.exists("end"):
            await asyncio.sleep(0.01)
        self.record("done", page_path(response))
""")


def test_an_item_that_redis_forgot_is_written_again(fault_crawl: MakeCrawl) -> None:
    """Redis still has the lease, so the page is not crawled again. But its item has to be stored again."""
    settings = {"ITEM_PIPELINES": {"scrapy_dq.RedisPipeline": 300}}
    crawl = fault_crawl(site={"pages": 1}, settings=settings, spider=ITEMS)
    (worker,) = crawl.start()
    key = f"{crawl.project.name}:items"
    with crawl.redis.client() as client:
        wait_until(lambda: crawl.project.count("start"), "the callback begins", 30)
        wait_until(lambda: not client.info("persistence")["aof_buffer_length"], "the lease is on disk", 30)
        snapshot = crawl.redis.snapshot()
        (crawl.project.folder / "item").touch()
        wait_until(lambda: client.llen(key) == 1, "the item is stored", 30)
        crawl.redis.roll_back(snapshot)
        (crawl.project.folder / "end").touch()
        verdict = crawl.end()
        assert (verdict.reasons, verdict.repeats, client.llen(key)) == (("finished",), 0, 1)
    assert worker.stats["dq/items/stored"] == 1


DEEP = {"CONCURRENT_REQUESTS": 8, "DQ_ROLLBACK_HORIZON": 1, "DQ_ORDER": "priority-fifo"}
"""Settings with which the replay log covers only one second."""


def test_a_roll_back_beyond_the_log_loses_nothing(fault_crawl: MakeCrawl) -> None:
    """Redis comes back with data that is several horizons old. Workers find the forgotten pages again."""
    crawl = fault_crawl(site={"pages": 500}, settings=DEEP, spider=GATHERED)
    workers = start_together(crawl)
    losses = Losses(crawl)
    crawl.wait_for_part(0.05)
    crawl.site.set_latency(0.5)  # so that the crawl cannot end before the roll-back

    def several_horizons() -> None:
        until = time.monotonic() + 4
        crawl.wait_for_part(0.2)
        time.sleep(max(0.0, until - time.monotonic()))

    losses.lose(several_horizons)
    crawl.site.set_latency(0.03)
    crawl.end_whole(losses.may_repeat)
    assert any("further than DQ_ROLLBACK_HORIZON" in worker.text for worker in workers)


def test_start_requests_that_are_lost_for_good_are_reported(fault_crawl: MakeCrawl) -> None:
    """Redis only knows the previous run, and no log has the start requests. No worker finishes the run.

    The run stays open. The same command runs start() again, and then crawls every page in that run.
    """
    crawl = fault_crawl(site={"pages": 300}, settings=DEEP, spider=GATHERED)
    (first,) = start_together(crawl, 1)
    first.wait()
    crawl.site.set_latency(0.3)  # so that the next run lasts until the roll-back
    tombstone = crawl.redis.snapshot()
    (crawl.project.folder / GO).unlink()
    workers = start_together(crawl)
    pids = [worker.pid for worker in workers]
    wait_until(lambda: crawl.project.count(pids=pids).total() >= 20, "20 pages are done", 30)
    time.sleep(3)
    crawl.redis.roll_back(tombstone)

    crawl.site.set_latency(0.03)
    for worker in workers:
        worker.wait(60)
    assert {worker.close_reason for worker in workers} <= {"frontier_rolled_back", "start_incomplete"}
    assert any("start() has to run again" in line for w in workers for line in outages.lines(w, "ERROR"))
    last = crawl.project.run_worker()
    pids.append(last.pid)
    done = crawl.project.count(pids=pids)
    crawl.note(pages=len(done), repeats=done.total() - len(done))
    assert last.close_reason == "finished"
    assert set(done) == crawl.site.paths
    assert crawl.overview().run == 1


@pytest.mark.parametrize("cuts", [12, pytest.param(100, marks=pytest.mark.soak)])
def test_a_truncated_aof_holds_no_half_transition(
    cuts: int,
    redis_kind: Kind,
    start_redis: StartRedis,
    crawl_name: str,
    figures: Figures,
) -> None:
    """A cut AOF restores a state that the crawl once had. A longer AOF never restores an older state."""
    redis = start_redis(redis_kind, appendonly=True)
    live = noted_frontier.NotedFrontier(redis.url, crawl_name)
    noted_frontier.live_through_all(live)
    redis.stop()
    whole = redis.snapshot()
    size = noted_frontier.aof_of(whole).stat().st_size
    rng = random.Random(cuts)
    even = range(0, size + 1, size // (cuts // 2 - 1))
    offsets = sorted({*even, *rng.sample(range(size), cuts - len(even))})

    found = []
    for offset in offsets:
        shortened = noted_frontier.cut(whole, offset)
        redis.roll_back(shortened)
        shutil.rmtree(shortened)
        with redis.client() as client:
            state = stored_state(client, crawl_name, live.order)
        # Search from the last found state on, because the first state occurs again after a flush.
        since = found[-1] if found else 0
        assert state in live.states[since:], f"cut after {offset} of {size} bytes"
        found.append(live.states.index(state, since))
    live.close()

    figures(cuts=len(offsets), bytes=size, states=len(live.states), states_found=len(set(found)))
    assert len(set(found)) > len(offsets) / 3
