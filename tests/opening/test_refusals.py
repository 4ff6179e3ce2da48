"""If `scrapy crawl` cannot open a crawl, it logs the reason and changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio

from scrapy_dq.frontier import Frontier, keys
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.keys import SCHEMA
from scrapy_dq.frontier.model import Admission, Identity, Order, Seeding
from scrapy_dq.frontier.wire import pack_moves
from support import stored
from support.live_frontier import put
from support.project import SPIDER as SPIDER_MODULE
from support.project import Project
from support.redis_server import KINDS, Kind, RedisServer, find_binary, found_kinds
from support.tree_spider import FED
from support.waiting import free_port
from support.worker import Worker

PASSWORD = "s3cr3t-w0rd"
AT_ONCE = 3
FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"
SPIDER = "tree_project.spiders.spider.ProjectSpider"
FAILING_SCHEDULER = """
import asyncio

from scrapy.core.scheduler import Scheduler
from scrapy.utils.defer import deferred_from_coro


class FailingScheduler(Scheduler):
    def open(self, spider):
        return deferred_from_coro(self._open())

    async def _open(self):
        await asyncio.sleep(0.01)
        raise RuntimeError("a scheduler that cannot be opened")

    def close(self, reason):
        pass
"""


class Stage:
    """The resources of a case: Redis servers and a crawl name."""

    def __init__(self, servers: Mapping[Kind, RedisServer], stack: ExitStack, crawl: str) -> None:
        self._servers = servers
        self._stack = stack
        self.crawl = crawl
        self.servers = list(servers.values())
        """All servers of the case, whose data must not be changed."""

    def server(self, kind: Kind | None = None) -> RedisServer:
        return self._servers[kind or found_kinds()[0]]

    def start_server(self, **options: Any) -> RedisServer:
        server = self._stack.enter_context(RedisServer(**options))
        self.servers.append(server)
        return server

    def store(self, *, order: Order = Order.PRIORITY_LIFO, **other: str) -> str:
        """Store a crawl of our spider, with *other* values in its identity, and return the server's URL."""
        agreed = {
            "fingerprinter": FINGERPRINTER, "spider": SPIDER, "spider_args": "{}", "partition_by": "slot",
        } | other  # fmt: skip
        moves = [put(1, admission=Admission.SEEN), put(2, start=True, admission=Admission.SEED)]

        async def store() -> None:
            async with redis.asyncio.Redis.from_url(self.server().url) as client:
                frontier = Frontier(client, self.crawl, order)
                joined = await frontier.join("writer", {}, "epoch", Identity(**agreed))
                await frontier.exchange(
                    Exchange("writer", joined.epoch, joined.run, 1, 0, Seeding.DONE, 0, pack_moves(moves))
                )
                await frontier.leave("writer", joined.epoch, joined.run, False)

        asyncio.run(store())
        return self.server().url

    def user(self, kind: Kind, *rules: str) -> str:
        """Make a Redis user with *rules*, and return the URL for this user."""
        server = self.server(kind)
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", self.crawl, "on", f">{PASSWORD}", *rules)
        return server.url.replace("redis://", f"redis://{self.crawl}:{PASSWORD}@")

    def key(self, name: str) -> str:
        return keys.prefix(self.crawl) + name


FED_BY_TWO = FED + '    redis_key = ["yes", "no"]\n'


class Case(NamedTuple):
    """A reason why a crawl cannot be opened."""

    prepare: Callable[[Stage], str]
    """Creates this reason on a stage, and returns the worker's REDIS_URL."""
    says: tuple[str, ...]
    """Parts of the first ERROR line, besides the address of Redis."""
    settings: Mapping[str, Any] = {}
    names_redis: bool = True
    spider: str = SPIDER_MODULE


def unreachable(stage: Stage) -> str:
    return f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"


def wrong_password(stage: Stage) -> str:
    server = stage.start_server(password="another")
    return f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"


def no_password(stage: Stage) -> str:
    server = stage.start_server(password=PASSWORD)
    return f"redis://127.0.0.1:{server.port}/0"


def evicting(stage: Stage) -> str:
    return stage.start_server(args=["--maxmemory-policy", "allkeys-lru"]).url


def other_schema(stage: Stage) -> str:
    url = stage.store()
    with stage.server().client() as client:
        client.hset(stage.key("meta"), "schema", "0")
    return url


def without_rights(kind: Kind, *rules: str) -> Callable[[Stage], str]:
    return lambda stage: stage.user(kind, *rules)


def another_type(name: str) -> Callable[[Stage], str]:
    def prepare(stage: Stage) -> str:
        url = stage.store()
        with stage.server().client() as client:
            client.delete(stage.key(name))
            client.rpush(stage.key(name), "not ours")
        return url

    return prepare


CASES = {
    "unreachable": Case(unreachable, ("cannot be reached", "Start it", "REDIS_URL", "embedded Redis")),
    "wrong password": Case(wrong_password, ("denies access", "password", "REDIS_URL")),
    "no password": Case(no_password, ("denies access", "password", "REDIS_URL")),
    "evicting": Case(evicting, ("allkeys-lru", "CONFIG SET maxmemory-policy noeviction")),
    "other schema": Case(
        other_schema, ("schema version '0'", f"has '{SCHEMA}'", "DQ_CRAWL", "SCHEDULER_FLUSH_ON_START")
    ),
    "other fingerprinter": Case(
        lambda stage: stage.store(fingerprinter="other.Fingerprinter"),
        ("REQUEST_FINGERPRINTER_CLASS 'other.Fingerprinter'", FINGERPRINTER, "DQ_CRAWL"),
    ),
    "other spider class": Case(
        lambda stage: stage.store(spider="other.Spider"), ("spider class 'other.Spider'", SPIDER, "DQ_CRAWL")
    ),
    "other order": Case(
        lambda stage: stage.store(order=Order.FIFO), ("DQ_ORDER 'fifo'", "'priority-lifo'", "DQ_CRAWL")
    ),
    "other partitions": Case(
        lambda stage: stage.store(partition_by="none"), ("DQ_PARTITION_BY 'none'", "has 'slot'", "DQ_CRAWL")
    ),
    "another kind of seen": Case(
        lambda stage: stage.store(),
        ("'exact'", "has 'expiring'", "with DQ_SEEN_TTL", "SCHEDULER_FLUSH_ON_START"),
        {"SCHEDULER_PERSIST": True, "DQ_SEEN_TTL": 60},
    ),
    "meta of another type": Case(another_type("meta"), ("another type", "DQ_CRAWL", "clear --all --force")),
    "seen of another type": Case(another_type("seen"), ("another type", "DQ_CRAWL", "clear --all --force")),
    "an unknown setting": Case(
        lambda stage: stage.store(), ("DQ_WORKER_TLL", "DQ_WORKER_TTL?"), {"DQ_WORKER_TLL": 3}, False
    ),
    "a bad value": Case(
        lambda stage: stage.store(), ("DQ_WORKER_TTL = '0'", "1 to 3600 s"), {"DQ_WORKER_TTL": 0}, False
    ),
}  # fmt: skip
for _kind in KINDS:
    if find_binary(_kind):
        _rights = ("denies access", "ACL SETUSER", "docs/deploying.md")
        CASES[f"no EVALSHA, {_kind}"] = Case(without_rights(_kind, "~*", "+@all", "-evalsha"), _rights)
        # This user may use only one of the two start keys.
        CASES[f"a start key, {_kind}"] = Case(
            without_rights(_kind, "~dq:*", "~yes", "+@all"), (*_rights, "~dq:* ~yes ~no "), spider=FED_BY_TWO
        )
        CASES[f"none of our keys, {_kind}"] = Case(without_rights(_kind, "~other:*", "+@all"), _rights)


class Refused(NamedTuple):
    """The end of a worker that could not open its crawl."""

    worker: Worker
    code: int
    url: str
    before: list[stored.Dump]
    after: list[stored.Dump]
    """The data of the crawl in each server."""

    @property
    def first_error(self) -> tuple[str, str]:
        """Return the logger and the message of the first line of level ERROR or above."""
        found = re.search(r"^\S+ \S+ \[(\S+)\] (?:ERROR|CRITICAL): (.*)$", self.worker.text, re.M)
        assert found, self.worker.text
        return found[1], found[2]


def dump_all(server: RedisServer, crawl: str) -> stored.Dump:
    with server.client() as client:
        return stored.dump(client, crawl)


@pytest.fixture(scope="module")
def refused(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Refused]]:
    """Run one worker for each selected case, AT_ONCE at a time, and yield how each worker has ended.

    The worker of "control" has another scheduler, which fails to open.
    """
    folder = tmp_path_factory.mktemp("refusals")
    wanted = {item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")}
    cases = {name: case for name, case in CASES.items() if name in wanted}
    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        servers = {kind: stack.enter_context(RedisServer(kind)) for kind in KINDS if find_binary(kind)}

        def run(name: str) -> Refused:
            spider = cases[name].spider if name in cases else SPIDER_MODULE
            project = Project(folder / re.sub(r"\W+", "-", name), [], spider=spider)
            stack.callback(project.close)
            if name == "control":
                module = project.folder / "tree_project" / "settings.py"
                module.write_text(module.read_text() + FAILING_SCHEDULER)
                worker = project.start_worker(
                    settings={"SCHEDULER": "tree_project.settings.FailingScheduler"}
                )
                return Refused(worker, worker.wait(30), "", [], [])
            stage = Stage(servers, stack, project.name)
            url = cases[name].prepare(stage)
            before = [dump_all(server, project.name) for server in stage.servers]
            worker = project.start_worker(settings={"REDIS_URL": url} | dict(cases[name].settings))
            code = worker.wait(30)
            after = [dump_all(server, project.name) for server in stage.servers]
            return Refused(worker, code, url, before, after)

        names = ["control", *cases]
        yield dict(zip(names, pool.map(run, names), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_worker_reports_why_a_crawl_cannot_be_opened_and_changes_nothing(
    refused: dict[str, Refused], case: str
) -> None:
    """The first ERROR line has fault, address and remedy. Redis is unchanged. The log has no password."""
    ended = refused[case]
    logger, message = ended.first_error
    assert logger.startswith("scrapy_dq.")
    for words in CASES[case].says:
        assert words in message
    if CASES[case].names_redis:
        assert ended.url.rpartition("@")[2].removeprefix("redis://") in message
    assert ended.after == ended.before
    log = ended.worker.text
    assert PASSWORD not in log
    # Scrapy closes a spider that could not be opened. Source: scrapy/core/engine.py::close_spider
    assert "Spider closed (" in log
    # Scrapy could report the failure of each step, but the log must have the reason only once.
    assert len(re.findall(r"^\S+ \S+ \[\S+\] (?:ERROR|CRITICAL): ", log, re.M)) == 1
    assert "Traceback" not in log
    assert "Traceback" in refused["control"].worker.text
    assert "Spider opened" in log
    # The status is 1 if Scrapy's crawl command notices such a late failure (2.19 does, 2.13 does not).
    assert ended.code == refused["control"].code


def test_the_stored_crawl_of_these_tests_can_be_opened(tmp_path: Path) -> None:
    """Without the change of a case, the stored crawl opens, so each case is refused only for its change."""
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        project = Project(tmp_path / "project", [], redis_url=server.url)
        stack.callback(project.close)
        Stage({server.kind: server}, stack, project.name).store()
        worker = project.run_to_end(timeout_s=30)
        assert "resumed run 0; 2 waiting, 0 in flight, 1 seen" in worker.text
