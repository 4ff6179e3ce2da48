"""The site of many domains must report correctly when requests arrived, and how many at a time."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from support.domain_site import DomainSite

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.1.1 is an address on Linux only")

StartSite = Callable[..., DomainSite]


@pytest.fixture
def start_domains() -> Iterator[StartSite]:
    """Yield a function that starts a site, with the arguments of Domains."""
    with ExitStack() as sites:
        yield lambda **domains: sites.enter_context(DomainSite(**domains))


def test_the_log_counts_the_simultaneous_requests_of_a_host(start_domains: StartSite) -> None:
    """Hosts are counted separately. A request counts from its arrival to its answer."""
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


def test_a_request_has_the_time_at_which_the_kernel_received_it(start_domains: StartSite) -> None:
    """The time of arrival is right even while the site's process is frozen, as on a busy machine."""
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
    """Freezes a process for the duration of a `with`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)
