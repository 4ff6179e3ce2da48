"""The site of many domains says truly what came when, how much at once, and asks to come back later."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from functools import partial

import pytest

from support.domain_site import DomainSite
from support.project import PLAIN, Project

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.1.1 is an address on Linux only")

StartSite = Callable[..., DomainSite]


@pytest.fixture
def start_domains() -> Iterator[StartSite]:
    """Yield a function with Domains's arguments that starts a site."""
    with ExitStack() as sites:
        yield lambda **domains: sites.enter_context(DomainSite(**domains))


def test_every_page_of_every_domain_is_linked_once(
    start_domains: StartSite, make_project: Callable[..., Project]
) -> None:
    """Plain Scrapy asks for each page once; 260 domains need more than one net."""
    site = start_domains(count=260, pages=3, latency_s=0, slow_count=1, slow_pages=5, slow_s=0.01)
    project = make_project(site.start_urls, settings=PLAIN)
    assert project.run_worker(timeout_s=60).close_reason == "finished"
    slow, quick = site.domains.slow_hosts, site.domains.quick_hosts
    assert len({*slow, *quick}) == 261
    assert site.counts() == dict.fromkeys(slow, 5) | dict.fromkeys(quick, 3)
    log = site.log()
    assert len({(asked.host, asked.target) for asked in log}) == len(log) == 785
    assert {asked.status for asked in log} == {200}


def test_the_log_says_how_much_of_a_host_is_answered_at_once(start_domains: StartSite) -> None:
    """Each host is counted for itself; what was answered is counted no more."""
    site = start_domains(count=1, pages=4, latency_s=0, slow_count=1, slow_pages=4, slow_s=0.5)
    (slow,), (quick,) = site.domains.slow_hosts, site.domains.quick_hosts
    began = time.monotonic()
    site.get("/p/0", slow)
    with ThreadPoolExecutor() as pool:
        bodies = [pool.submit(site.get, f"/p/{k}", slow) for k in (1, 2, 3)]
        site.wait_for(4, slow)
        site.get("/p/1", quick)
        assert {body.result()[:13] for body in bodies} == {b"<html><title>"}
    assert time.monotonic() - began >= 0.5
    site.get("/p/9", slow)
    log = site.log()
    first, *together, last = [asked.at_once for asked in log if asked.host == slow]
    assert (first, sorted(together), last) == (1, [1, 2, 3], 1)
    assert [(asked.target, asked.at_once) for asked in log if asked.host == quick] == [("/p/1", 1)]
    assert log[-1].status == 404
    assert began <= log[0].at_s <= log[-1].at_s <= time.monotonic()


def test_a_request_came_when_the_kernel_had_it(start_domains: StartSite) -> None:
    """The site's process is frozen meanwhile: a busy machine bends no gap."""
    site = start_domains(count=1, pages=2, latency_s=0)
    (host,) = site.domains.quick_hosts
    began = time.monotonic()
    with socket.create_connection((host, site.port)) as connection:
        with HoldStill(site.pid):
            connection.sendall(b"GET /p/1 HTTP/1.1\r\nHost: a\r\n\r\n")
            sent = time.monotonic()
            time.sleep(0.3)
        site.wait_for(1, "a")
    [asked] = site.log()
    assert began <= asked.at_s <= sent + 0.1


class HoldStill:
    """Freezes a process, for the time of a `with`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)


def test_a_client_that_has_disconnected_is_not_answered(
    start_domains: StartSite, make_project: Callable[..., Project]
) -> None:
    """A killed worker leaves nothing at work."""
    site = start_domains(count=0, slow_count=1, slow_pages=6, slow_s=60)
    project = make_project(site.start_urls, settings=PLAIN)
    worker = project.start_worker()
    site.wait_for(6)
    worker.kill()
    site.get("/p/0", site.domains.slow_hosts[0])
    assert [asked.at_once for asked in site.log()] == [1, 1, 2, 3, 4, 5, 1]


def test_a_host_or_a_path_asks_to_come_back_later(start_domains: StartSite) -> None:
    """As often as requested, in seconds or with a date, and then as usual."""
    site = start_domains(count=2, pages=2, latency_s=0)
    first, second = site.domains.quick_hosts

    def fetch(target: str, host: str) -> tuple[int, str | None]:
        status, headers, _ = site.fetch(target, host)
        return status, headers["Retry-After"]

    site.throttle(first, 7, times=2, status=503)
    assert [fetch(f"/p/{k}", first) for k in (0, 1, 0)] == [(503, "7"), (503, "7"), (200, None)]
    assert fetch("/p/0", second) == (200, None)
    assert [fetch("/p/1?retry_after=3", second) for _ in range(2)] == [(429, "3"), (200, None)]
    assert [status for status, _ in map(partial(fetch, host=first), ["/p/1?retry_after=1&times=2"] * 3)] == [
        429, 429, 200
    ]  # fmt: skip
    assert [asked.status for asked in site.log()] == [503, 503, 200, 200, 429, 200, 429, 429, 200]
    before = time.time()
    site.throttle(first, 30, date=1)
    status, after = fetch("/p/0", first)
    assert (status, after and after[-4:]) == (429, " GMT")
    assert 30 <= parsedate_to_datetime(after or "").timestamp() - before < 32
    site.throttle(first, 30)
    site.reset()
    assert fetch("/p/0", first) == (200, None)
    assert site.counts() == {first: 1}
