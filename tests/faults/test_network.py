"""The network between the workers and Redis loses replies, or everything: each request is processed once."""

from __future__ import annotations

import time

import pytest

from support import outages
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl
from support.waiting import Stopwatch, wait_until

RESUMES_WITHIN_S = 3.0


@pytest.mark.parametrize("exchanges", [100, pytest.param(1_000, marks=pytest.mark.soak)])
def test_no_lost_reply_loses_or_doubles_a_page(exchanges: int, fault_crawl: MakeCrawl) -> None:
    """One reply in ten is cut after Redis has applied the command: every page is processed exactly once."""
    crawl = fault_crawl(
        proxied=True,
        site={"pages": exchanges * 4, "latency_s": 0.02},
        settings={"CONCURRENT_REQUESTS": 4, "DQ_WORKER_TTL": 30},
        spider=GATHERED,
    )
    workers = start_together(crawl)
    crawl.proxy.set_loss(0.1)

    verdict = crawl.end(240)

    made = sum(worker.stats["dq/exchanges"] for worker in workers)
    failed = sum(worker.stats.get("dq/redis_errors", 0) for worker in workers)
    told = [len(outages.outages(worker)) for worker in workers]
    crawl.note(verdict, exchanges=made, replies_cut=failed, outages=told)
    assert made >= exchanges
    assert failed >= exchanges / 20
    assert crawl.done == crawl.project.count("item") == dict.fromkeys(crawl.site.paths, 1)
    crawl.assert_whole(verdict)
    for worker in workers:
        outages.assert_quiet(worker)
        # Redis has applied what it was sent: a repeat is enough, no worker has to register again.
        assert "dq/rejoins" not in worker.stats


@pytest.mark.parametrize(
    ("times", "seconds"), [(1, 4.0), pytest.param(3, 10.0, marks=pytest.mark.soak)], ids=["once", "3 times"]
)
def test_the_crawl_resumes_after_a_black_hole(times: int, seconds: float, fault_crawl: MakeCrawl) -> None:
    """Nothing is answered for longer than the TTL: within 3 s of its end a page is done; none is lost."""
    crawl = fault_crawl(
        proxied=True,
        site={"pages": 200 + 200 * times},
        settings={"CONCURRENT_REQUESTS": 8},
        spider=GATHERED,
    )
    workers = start_together(crawl)
    resumed_s, stalled_s = [], 0.0
    for number in range(times):
        crawl.wait_for_part(0.05 + 0.35 * number / times)
        away = Stopwatch()
        crawl.proxy.black_hole()
        time.sleep(seconds)
        assert all(worker.text.count(outages.WARNING) == number + 1 for worker in workers)
        before = crawl.done.total()
        crawl.proxy.pass_through()
        ended = Stopwatch()
        wait_until(lambda n=before: crawl.done.total() > n, "a page is done")
        resumed_s.append(round(ended.seconds, 2))
        assert resumed_s[-1] < RESUMES_WITHIN_S
        outages.wait_for_ends(workers, number + 1)
        stalled_s = max(stalled_s, away.stalled_s)

    verdict = crawl.end()
    told = outages.assert_told(workers, times)
    crawl.note(verdict, black_holes=times, resumed_after_s=resumed_s, kept=[one.kept for one in told])
    crawl.assert_whole(verdict)
    assert all(one.lasted_s < seconds + RESUMES_WITHIN_S + stalled_s for one in told)
