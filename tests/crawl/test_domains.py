"""Many sites, several workers: what the sites themselves see of turns, delays, limits and Retry-After."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from support.domain_site import Asked, DomainSite
from support.given import MakeProject
from support.project import Project
from support.redis_server import RedisServer

TICK_S = 0.002
"""What the clocks may be apart that measure a delay and the arrivals."""
QUICK = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 8}
StartDomains = Callable[..., DomainSite]


@pytest.fixture
def start_domains() -> Iterator[StartDomains]:
    """Yield a function that starts a site of many domains; it is stopped at the end of the test."""
    with ExitStack() as sites:
        yield lambda **domains: sites.enter_context(DomainSite(**domains))


def by_host(log: list[Asked]) -> dict[str, list[Asked]]:
    hosts: dict[str, list[Asked]] = defaultdict(list)
    for asked in log:
        hosts[asked.host].append(asked)
    return hosts


def crawl(project: Project, workers: int, timeout_s: float = 90.0) -> None:
    """Crawl to the end with that many workers, of which each takes part as far as it can."""
    project.start_workers(workers)
    assert project.wait(timeout_s) == ["finished"] * workers


def assert_each_once(site: DomainSite, log: list[Asked]) -> None:
    assert len(log) == len({(asked.host, asked.target) for asked in log})
    assert len(log) == site.domains.count * site.domains.pages


def test_all_workers_together_keep_the_delay_of_a_domain(
    redis_server: RedisServer,
    make_project: MakeProject,
    start_domains: StartDomains,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half a second between any two requests to a domain, from any worker; and no domain is forgotten."""
    site = start_domains(count=20, pages=12)
    settings = {**QUICK, "DQ_DOMAIN_DELAY": 0.5}
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=settings)

    crawl(project, 4)

    log = site.log()
    assert_each_once(site, log)
    gaps = sorted(b.at_s - a.at_s for asked in by_host(log).values() for a, b in pairwise(asked))
    with capsys.disabled():
        print(f"\n{len(gaps)} gaps: {gaps[0]:.4f} to {gaps[-1]:.3f} s, median {gaps[len(gaps) // 2]:.4f} s")
    # How much longer they are, a busy machine decides; of what is added, test_politeness.py has the bounds.
    assert gaps[0] >= 0.5 - TICK_S
    assert sum(worker.stats.get("dq/acked", 0) > 0 for worker in project.workers) >= 2


def test_all_workers_together_keep_the_concurrency_of_a_domain(
    redis_server: RedisServer, make_project: MakeProject, start_domains: StartDomains
) -> None:
    """Four workers have 16 slots each; a domain never sees more than two requests at once."""
    site = start_domains(count=5, pages=40, latency_s=0.1)
    settings = {**QUICK, "DQ_DOMAIN_CONCURRENCY": 2}
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=settings)

    crawl(project, 4)

    log = site.log()
    assert_each_once(site, log)
    assert max(asked.at_once for asked in log) == 2


def test_a_worker_keeps_scrapys_own_concurrency_of_a_domain(
    redis_server: RedisServer, make_project: MakeProject, start_domains: StartDomains
) -> None:
    """CONCURRENT_REQUESTS_PER_DOMAIN holds, also where Scrapy's downloader lets a burst through."""
    site = start_domains(count=3, pages=40, latency_s=0.05)
    settings: dict[str, Any] = {**QUICK, "CONCURRENT_REQUESTS_PER_DOMAIN": 2}
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=settings)

    crawl(project, 1)

    log = site.log()
    assert_each_once(site, log)
    assert max(asked.at_once for asked in log) == 2


@pytest.mark.parametrize("how", [{}, {"status": 503, "date": 1}], ids=["429, seconds", "503, a date"])
def test_all_workers_stay_away_while_a_site_asks_for_it(
    how: dict[str, Any],
    redis_server: RedisServer,
    make_project: MakeProject,
    start_domains: StartDomains,
) -> None:
    """One worker sees Retry-After: 5, all are notified and wait until the time is over."""
    site = start_domains(count=2, pages=500)
    asking, other = site.domains.quick_hosts
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=QUICK)
    project.start_workers(2)
    site.wait_for(100, asking, timeout_s=30)
    site.throttle(asking, 5, **how)
    assert project.wait(90) == ["finished"] * 2

    hosts = by_host(site.log())
    (refused,) = [asked for asked in hosts[asking] if asked.status != 200]
    later = [asked.at_s - refused.at_s for asked in hosts[asking] if asked.at_s > refused.at_s]
    # What was under way, or leased before the notice, still comes; then nothing. A date has whole seconds.
    away_s = 4.9 if not how else 3.9
    assert sum(gap < away_s for gap in later) < 100
    assert not [gap for gap in later if 3 < gap < away_s]
    assert len({asked.target for asked in hosts[asking] if asked.status == 200}) == 500
    assert any(0.2 < asked.at_s - refused.at_s < 4 for asked in hosts[other]), "the other goes on"
    assert sum(worker.stats.get("dq/retry_after", 0) for worker in project.workers) == 1


def test_a_site_that_was_fast_and_is_silent_delays_no_other(
    redis_server: RedisServer, make_project: MakeProject, start_domains: StartDomains
) -> None:
    """What it has left in the buffer, leased while it was fast, does not keep those of other sites out."""
    site = start_domains(
        count=1, pages=2_000, latency_s=0.2, slow_count=1, slow_pages=2_000, slow_s=600, slow_after=500
    )
    (fast,), (other,) = site.domains.slow_hosts, site.domains.quick_hosts
    settings = {"CONCURRENT_REQUESTS": 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    make_project(site.start_urls, redis_url=redis_server.url, settings=settings).start_worker()
    site.wait_for(501, fast, timeout_s=60)  # the last one does not come
    site.wait_for(site.counts()[other] + 20, other, timeout_s=60)
