"""Two workers are cut off alternately. Afterwards, both must download as many pages at once as they may."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier.admin.overview import peek
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartProxy
from support.waiting import Stopwatch, repeated, wait_until

LONGEST_PAGE_S = 5.0
SLOTS = 2 * 16
"""The slots of both workers together. Each slot is room for one page in progress."""


class Sample(NamedTuple):
    """The state of the crawl at one moment."""

    at_s: float
    waiting: int
    suspects: int
    done: int


@pytest.mark.soak
@pytest.mark.parametrize("cuts", [4, 9])
def test_workers_that_are_cut_off_in_turn_leave_no_suspects_and_use_all_slots(
    cuts: int, fault_crawl: MakeCrawl, start_proxy: StartProxy
) -> None:
    """Pages take 3 to 5 s. Cuts are longer than the TTL. No request becomes a suspect. All slots are used."""
    pages = 150 + 45 * cuts
    crawl = fault_crawl(
        proxied=True, site={"pages": pages, "fan_out": pages, "latency_s": 3.0, "spread_s": 2.0},
        spider=GATHERED, settings={"CONCURRENT_REQUESTS": SLOTS // 2},
    )  # fmt: skip
    (first,) = crawl.start()
    other_proxy = start_proxy(crawl.redis_url)
    second = start_together(crawl, 1, beside=first, settings={"REDIS_URL": other_proxy.url})[1]
    held = 0
    with connect_url(crawl.redis_url) as redis, repeated(lambda: _look(crawl, redis), 0.2) as looks:
        for number in range(cuts):
            worker, proxy = [(first, crawl.proxy), (second, other_proxy)][number % 2]
            done, rejoins = crawl.done.total(), worker.text.count(" continues as ")
            wait_until(lambda n=done: crawl.done.total() > n + SLOTS // 2, "both workers crawl", 30)
            proxy.black_hole()
            held += crawl.leases({worker.pid})
            wait_until(
                lambda w=worker: not crawl.leases({w.pid}), "the other worker takes over its requests", 30
            )
            proxy.pass_through()
            wait_until(
                lambda w=worker, n=rejoins: w.text.count(" continues as ") > n, "the worker rejoins", 30
            )
        back_s, since = time.monotonic(), Stopwatch()
        for worker in (first, second):
            worker.wait()
        ended_s, stalled_s = time.monotonic(), since.stalled_s
    samples = [look for look in looks if isinstance(look, Sample)]
    after = [sample for sample in samples if sample.at_s >= back_s]
    emptied_s = next(one.at_s for one in after if one.waiting - one.suspects < SLOTS)
    last_page_s = next(one.at_s for one in after if one.done == after[-1].done)
    suspects, tail_s = max(one.suspects for one in samples), ended_s - emptied_s
    crawl.end_whole(
        held, held=held, suspects=suspects, tail_s=round(tail_s, 1), waiting_after_cuts=after[0].waiting,
        pages_per_s=round((after[-1].done - after[0].done) / (last_page_s - back_s), 1),
        seconds_after_cuts=round(ended_s - back_s, 1), stalled_s=round(stalled_s, 1),
    )  # fmt: skip
    assert suspects == 0
    assert tail_s <= 3 * LONGEST_PAGE_S + stalled_s


def _look(crawl: FaultCrawl, redis: Any) -> Sample:
    waiting = peek(redis, crawl.project.name).census.waiting
    suspects = redis.zcard(f"dq:{{{crawl.project.name}}}:quarantine")
    return Sample(time.monotonic(), waiting, suspects, crawl.done.total())
