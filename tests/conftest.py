"""Fixtures of all tests: real Redis servers, random crawl names, sites and projects."""

from __future__ import annotations

import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from scrapy_dq.frontier.archive import new_crawl
from scrapy_dq.frontier.frontier import Frontier
from support.fault_crawl import FIGURES
from support.fork_server import ForkServer
from support.project import Project
from support.proxy import RedisProxy
from support.redis_server import KINDS, NEWEST, Kind, RedisServer, found_kinds
from support.tree_site import TreeSite

# A shell starts background jobs with SIGINT ignored. If the tests run in such a job, all processes that they
# start would inherit this, and ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the load of the machine, so examples have no deadline.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

LONGEST_FIRST = (
    "simulation", "faults", "frontier", "opening", "crawl", "crew", "scheduling", "commands", "queues",
    "embedded",
)  # fmt: skip
"""The folders whose files run longest, the longest first. All other folders come after them."""


KINDS_OF_TESTS = {"unit": "unit", "tests": "unit", "frontier": "redis", "worker": "redis"}
"""The mark of each folder's tests, which tells what they start. All other tests get the mark `process`."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(KINDS_OF_TESTS.get(item.path.parent.name, "process"))


def pytest_configure(config: pytest.Config) -> None:
    # By default, xdist begins with the files that have the most tests. They are fast, so keep our order.
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest folders first. Otherwise, one long file may run last, while other processors are idle.

    Also remove the time limit of the tests that only `make soak` runs.
    """

    def lasts(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=lasts)
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use `redis_server` or `redis_kind` with every kind of Redis.

    `make test` uses only the first kind. It is a new Redis, which has functions, for the tests in
    tests/frontier, and the oldest Redis for all other tests.
    """
    first, *others = found_kinds() or KINDS[:1]
    if metafunc.definition.path.parent.name == "frontier" and NEWEST in others:
        first, others = NEWEST, [first, *(kind for kind in others if kind != NEWEST)]
    kinds = [first, *(pytest.param(kind, marks=pytest.mark.soak) for kind in others)]
    for name in {"redis_server", "redis_kind"}.intersection(metafunc.fixturenames):
        metafunc.parametrize(name, kinds, indirect=name == "redis_server", scope="session")


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Yield a server with an append-only file. All tests of the session share the server.

    A test uses only its own `crawl_name`, and deletes no other keys. To harm a server, use `start_redis`.
    """
    kind: Kind = request.param
    with RedisServer(kind, appendonly=True) as server:
        yield server


@pytest.fixture
def crawl_name() -> str:
    """Return a name that no other test uses, and that Redis keys contain unchanged."""
    return f"crawl-{secrets.token_hex(6)}"


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Yield a function that starts a server for this test alone, with RedisServer's arguments."""
    with ExitStack() as servers:

        def start(*args: Any, **options: Any) -> RedisServer:
            return servers.enter_context(RedisServer(*args, **options))

        yield start


@pytest.fixture
def start_proxy() -> Iterator[Callable[[str], RedisProxy]]:
    """Yield a function that starts a proxy in front of the Redis at a URL."""
    with ExitStack() as proxies:
        yield lambda upstream_url: proxies.enter_context(RedisProxy(upstream_url))


@pytest.fixture
def start_site() -> Iterator[Callable[..., TreeSite]]:
    """Yield a function that starts a site, with Tree's arguments."""
    with ExitStack() as sites:
        yield lambda **tree: sites.enter_context(TreeSite(**tree))


@pytest.fixture(scope="session")
def fork_server(pytestconfig: pytest.Config) -> Iterator[ForkServer | None]:
    """Yield the server that forks the workers of `make_project`. It is None in `make soak`."""
    if pytestconfig.getoption("markexpr") == "soak":
        yield None
        return
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def make_project(tmp_path: Path, fork_server: ForkServer | None) -> Iterator[Callable[..., Project]]:
    """Yield a function that writes a project, with Project's arguments except the folder.

    The project's workers are killed at the end of the test.
    """
    with ExitStack() as projects:
        made = 0

        def make(*args: Any, **options: Any) -> Project:
            nonlocal made
            made += 1
            project = Project(tmp_path / f"project-{made}", *args, fork_server=fork_server, **options)
            projects.callback(project.close)
            return project

        yield make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures of all fault tests in this run, and the seconds that each folder of tests took."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    reports = [report for report in reports if hasattr(report, "duration")]
    lines = [
        line
        for report in reports
        if report.when == "call"
        for name, line in report.user_properties
        if name == FIGURES
    ]
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.line(line)
    seconds = Counter[str]()
    for report in reports:
        seconds[str(Path(report.nodeid.partition("::")[0]).parent)] += report.duration
    terminalreporter.section("seconds of all processes together")
    terminalreporter.line(", ".join(f"{folder} {took:,.0f}" for folder, took in seconds.most_common()))


@pytest.fixture
def _quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write without the wait for a disk, which would take a second or two each time."""

    async def written(frontier: Frontier, write: Callable[[Frontier], Any], deadline: float) -> str:
        await write(frontier)
        return ""

    monkeypatch.setattr(new_crawl, "written", written)
