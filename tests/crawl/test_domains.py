"""Several workers crawl many sites, and keep the delay, the limit of simultaneous requests and fair turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from support.domain_site import Asked, DomainSite
from support.given import MakeProject
from support.project import Project
from support.redis_server import RedisServer

TICK_S = 0.002
"""The allowed difference between the clocks that measure a delay and an arrival."""
QUICK = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 8}
StartDomains = Callable[..., DomainSite]


@pytest.fixture
def start_domains() -> Iterator[StartDomains]:
    """Yield a function that starts a site of many domains, and stops it at the end of the test."""
    with ExitStack() as sites:
        yield lambda **domains: sites.enter_context(DomainSite(**domains))


def by_host(log: list[Asked]) -> dict[str, list[Asked]]:
    hosts: dict[str, list[Asked]] = defaultdict(list)
    for asked in log:
        hosts[asked.host].append(asked)
    return hosts


def crawl(project: Project, workers: int, timeout_s: float = 90.0) -> None:
    """Let *workers* crawl to the end."""
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
    """At least 0.5 s pass between two requests to a domain, from any workers. No domain is left out."""
    site = start_domains(count=20, pages=12)
    settings = {**QUICK, "DQ_DOMAIN_DELAY": 0.5}
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=settings)

    crawl(project, 4)

    log = site.log()
    assert_each_once(site, log)
    gaps = sorted(b.at_s - a.at_s for asked in by_host(log).values() for a, b in pairwise(asked))
    with capsys.disabled():
        print(f"\n{len(gaps)} gaps: {gaps[0]:.4f} to {gaps[-1]:.3f} s, median {gaps[len(gaps) // 2]:.4f} s")
    # A busy machine can make the gaps longer. test_politeness.py checks the upper bounds.
    assert gaps[0] >= 0.5 - TICK_S
    assert sum(worker.stats.get("dq/acked", 0) > 0 for worker in project.workers) >= 2


@pytest.mark.parametrize(
    ("workers", "limit"), [(4, "DQ_DOMAIN_CONCURRENCY"), (1, "CONCURRENT_REQUESTS_PER_DOMAIN")]
)
def test_a_domain_never_gets_more_simultaneous_requests_than_its_limit(
    redis_server: RedisServer,
    make_project: MakeProject,
    start_domains: StartDomains,
    workers: int,
    limit: str,
) -> None:
    """Four workers have 16 slots each. Even one worker alone must not send a burst of requests."""
    site = start_domains(count=5, pages=40, latency_s=0.1)
    project = make_project(site.start_urls, redis_url=redis_server.url, settings=QUICK | {limit: 2})

    crawl(project, workers)

    log = site.log()
    assert_each_once(site, log)
    assert max(asked.at_once for asked in log) == 2


def test_a_site_that_becomes_silent_delays_no_other_site(
    redis_server: RedisServer, make_project: MakeProject, start_domains: StartDomains
) -> None:
    """The site was fast before. Its leases in the buffer still leave room for leases of other sites."""
    site = start_domains(
        count=1, pages=2_000, latency_s=0.2, slow_count=1, slow_pages=2_000, slow_s=600, slow_after=500
    )
    (fast,), (other,) = site.domains.slow_hosts, site.domains.quick_hosts
    settings = {"CONCURRENT_REQUESTS": 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    make_project(site.start_urls, redis_url=redis_server.url, settings=settings).start_worker()
    site.wait_for(501, fast, timeout_s=60)  # the site does not answer the last request
    site.wait_for(site.counts()[other] + 20, other, timeout_s=60)
