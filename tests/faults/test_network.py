"""The network to Redis loses replies, or all traffic. Each request is processed once."""

from __future__ import annotations

import time

import pytest

from scrapy_dq.backend.clients import connect_url
from support import outages
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartProxy
from support.waiting import Stopwatch, wait_until
from worker.engine import call_of

RESUMES_WITHIN_S = 3.0


@pytest.mark.parametrize("exchanges", [100, pytest.param(1_000, marks=pytest.mark.soak)])
def test_lost_replies_lose_and_double_no_page(exchanges: int, fault_crawl: MakeCrawl) -> None:
    """One reply in ten is lost after Redis has applied its command. Each page is processed exactly once."""
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
        outages.assert_no_outage_logged(worker)
        # Redis had applied each command. So it is enough to repeat the exchange; no worker has to rejoin.
        assert "dq/rejoins" not in worker.stats


@pytest.mark.parametrize(
    ("times", "seconds"), [(1, 4.0), pytest.param(3, 10.0, marks=pytest.mark.soak)], ids=["once", "3 times"]
)
def test_the_crawl_resumes_after_a_black_hole(times: int, seconds: float, fault_crawl: MakeCrawl) -> None:
    """All replies are lost for longer than the TTL. Within 3 s of the end, a page is done. None is lost."""
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
    told = outages.assert_outages_logged(workers, times)
    crawl.note(verdict, black_holes=times, resumed_after_s=resumed_s, kept=[one.kept for one in told])
    crawl.assert_whole(verdict)
    assert all(one.lasted_s < seconds + RESUMES_WITHIN_S + stalled_s for one in told)


def test_a_worker_whose_exchanges_are_cut_for_good_loses_its_leases(fault_crawl: MakeCrawl) -> None:
    """The worker's heartbeats still pass, but the worker stops them. So other workers finish its requests.

    The worker rejoins when its exchanges pass again.
    """
    crawl = fault_crawl(
        proxied=True, site={"pages": 400}, settings={"CONCURRENT_REQUESTS": 8}, spider=GATHERED
    )
    (cut_off,) = crawl.start()
    others = start_together(crawl, beside=cut_off, settings={"REDIS_URL": crawl.redis_url})[1:]
    crawl.wait_for_part(0.2)
    crawl.proxy.lose(*call_of("exchange"))
    held = crawl.leases({cut_off.pid})
    for worker in others:
        worker.wait(60)
    assert cut_off.running
    assert set(crawl.done) == crawl.site.paths
    assert cut_off.text.count("it stops its heartbeat, and its requests go to other workers") == 1
    crawl.proxy.pass_through()
    crawl.end_whole(held, workers=3, held=held)


def test_the_requests_of_a_worker_that_is_only_cut_off_are_not_suspects(
    fault_crawl: MakeCrawl, start_proxy: StartProxy
) -> None:
    """Each worker is cut off twice, for longer than the TTL. No request goes to the quarantine."""
    crawl = fault_crawl(
        proxied=True, site={"pages": 300, "latency_s": 0.3}, spider=GATHERED,
        settings={"CONCURRENT_REQUESTS": 8, "DQ_WORKER_TTL": 1},
    )  # fmt: skip
    (first,) = crawl.start()
    other_proxy = start_proxy(crawl.redis_url)
    second = start_together(crawl, 1, beside=first, settings={"REDIS_URL": other_proxy.url})[1]
    quarantine, held = f"dq:{{{crawl.project.name}}}:quarantine", 0
    with connect_url(crawl.redis_url) as redis:
        for worker, proxy in [(first, crawl.proxy), (second, other_proxy)] * 2:
            pages = len(crawl.done)
            wait_until(lambda n=pages: len(crawl.done) > n + 20, "both workers crawl")
            rejoins = worker.text.count(" continues as ")
            proxy.black_hole()
            held += crawl.leases({worker.pid})
            wait_until(lambda w=worker: not crawl.leases({w.pid}), "the other worker takes over its requests")
            assert redis.zcard(quarantine) == 0
            proxy.pass_through()
            wait_until(lambda w=worker, n=rejoins: w.text.count(" continues as ") > n, "the worker rejoins")
    crawl.end_whole(held, held=held)
