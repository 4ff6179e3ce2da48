"""`scrapy crawl` opens a crawl: the line in its log, SCHEDULER_FLUSH_ON_START, and Redis rights."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest
import redis

from scrapy_dq.frontier.admin.flush import purge
from scrapy_dq.frontier.model import Admission, Block, Claim, Identity, Order, Seen, Sent, Terms
from scrapy_dq.frontier.rights import ROLES, acl_of
from scrapy_dq.frontier.scripts import lua_files
from scrapy_dq.frontier.wire import pack_tally
from scrapy_dq.frontier.worker.audit import audit
from scrapy_dq.frontier.worker.identity import own_identity
from support import stored
from support.given import MakeProject, StartRedis, StartSite
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, put, release
from support.project import Project
from support.redis_server import RedisServer
from support.waiting import Stopwatch
from support.worker import Worker, wait_all

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"
SPIDER = "tree_project.spiders.spider.ProjectSpider"
OURS = Identity(FINGERPRINTER, SPIDER, "{}", partition_by="slot")
GONE = own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}
AFRESH = "SCHEDULER_FLUSH_ON_START = True starts over"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly=True) as server:
        yield server


@pytest.fixture
def project(server: RedisServer, make_project: MakeProject) -> Project:
    """Return a project whose spider has no start requests."""
    return make_project([], redis_url=server.url)


@pytest.fixture
def live(server: RedisServer, project: Project) -> Iterator[LiveFrontier]:
    """Yield the frontier of the project's crawl."""
    with closing(LiveFrontier(server.url, project.name)) as live:
        yield live


def join(
    live: LiveFrontier, worker_id: str, identity: dict[str, object], crawl: Identity = OURS
) -> HandWorker:
    """Let a worker of our project, with this identity, join the crawl."""
    live.call("join", worker_id, identity, "epoch", crawl)
    return HandWorker(live, worker_id, crawl)  # the worker joins a second time, which changes nothing


def opening_line(worker: Worker, crawl: str) -> str:
    """Return the only line about the opened crawl."""
    line = rf"^\S+ \S+ \[scrapy_dq\.scheduling\.progress_log\] (?:INFO|WARNING): Crawl '{crawl}' at (.*)$"
    found = re.findall(line, worker.text, re.MULTILINE)
    assert len(found) == 1, worker.text
    return str(found[0])


def warnings_of(worker: Worker) -> list[str]:
    return re.findall(r"^\S+ \S+ \[scrapy_dq\S*\] WARNING: (.*)$", worker.text, re.M)


def test_a_worker_waits_for_a_redis_that_is_just_starting(
    start_redis: StartRedis, start_site: StartSite, make_project: MakeProject
) -> None:
    """The worker logs that it waits, and then crawls: containers often start together with Redis."""
    redis = start_redis(appendonly=True)
    redis.stop()
    site = start_site(pages=3)
    project = make_project([site.start_url], redis_url=redis.url)
    worker = project.start_worker()
    worker.wait_for_log("Waiting up to 5 s for it")
    redis.start()
    assert worker.wait(20) == 0
    assert worker.close_reason == "finished"
    assert worker.text.count("Waiting up to") == 1


def test_each_new_run_is_announced(project: Project, server: RedisServer) -> None:
    """The line has Redis's address, the run and the counts. Nothing is stored, so no flush is advised."""
    for run in (0, 1):
        worker = project.run_to_end(timeout_s=30)
        where = f"127.0.0.1:{server.port}/0"
        assert opening_line(worker, project.name) == f"{where}: new run {run}; 0 waiting, 0 in flight, 0 seen"
        assert not warnings_of(worker)


def test_a_resumed_run_is_announced_with_its_counts(project: Project, live: LiveFrontier) -> None:
    """No other worker is registered, so the line has the counts, and says how to start over."""
    hand = join(live, "stopped", GONE)
    hand.exchange(put(1), put(2), put(3, admission=Admission.SEEN), want=1)
    hand.leave()
    worker = project.run_worker(timeout_s=30)
    line = opening_line(worker, project.name)
    assert line.endswith(f": resumed run 0; 3 waiting, 0 in flight, 1 seen. {AFRESH}")


def test_a_joined_run_is_announced_with_its_counts_and_its_workers(
    project: Project, live: LiveFrontier
) -> None:
    """Another worker has a lease, so this worker stays until the lease is done."""
    hand = join(live, "alive", own_identity())
    hand.exchange(put(1), want=1, seeding=1)
    worker = project.start_worker()
    worker.wait_for_log("Crawl ")
    line = opening_line(worker, project.name)
    assert re.search(r": joined run 0 alongside 1 registered workers?; 0 waiting, 1 in flight, 0 seen$", line)
    assert not line.endswith(AFRESH)  # a flush would be refused
    hand.exchange(ack(1))
    hand.leave()
    worker.wait(30)
    assert worker.close_reason == "finished"


def test_a_finished_run_of_the_same_name_is_announced(project: Project, live: LiveFrontier) -> None:
    """The worker closes with `finished`, and its log says how to start another run."""
    hand = join(live, "finished", GONE, replace(OURS, run_name="nightly-7"))
    hand.exchange()
    hand.leave()
    worker = project.run_to_end(settings={"DQ_RUN_NAME": "nightly-%(job)s"}, environ={"SCRAPY_JOB": "7"})
    line = opening_line(worker, project.name)
    assert "run 'nightly-7' is finished: nothing to do" in line
    assert "DQ_RUN_NAME" in line
    assert f"WARNING: Crawl '{project.name}' at {line}" in worker.text


def test_other_spider_arguments_are_warned_about(server: RedisServer, make_project: MakeProject) -> None:
    """The user may have meant another crawl. The warning has the names of the arguments and DQ_CRAWL."""
    workers = []
    for category in ("poetry", "prose"):
        project = make_project([], redis_url=server.url)
        live = LiveFrontier(server.url, project.name)
        digest = blake2b(b"poetry", digest_size=6).hexdigest()
        args = json.dumps({"category": digest})
        join(live, "stopped", GONE, replace(OURS, spider_args=args)).leave()
        live.disconnect()
        workers.append(project.start_worker(args={"category": category}))
    assert wait_all(workers, 30) == ["finished", "finished"]
    same, other = workers
    assert not warnings_of(same)
    [warning] = warnings_of(other)
    for words in ("(-a): category.", "DQ_CRAWL"):
        assert words in warning
    assert "prose" not in warning


# SCHEDULER_FLUSH_ON_START

FLUSH = {"SCHEDULER_FLUSH_ON_START": "1"}


def test_a_flush_deletes_the_old_crawl_if_no_worker_is_alive(project: Project, live: LiveFrontier) -> None:
    """Leases of a worker that died on this machine are also deleted. Then a new run begins."""
    hand = join(live, "gone", GONE, replace(OURS, fingerprinter="other.Fingerprinter"))
    hand.exchange(put(1), put(2, admission=Admission.SEEN), want=1)
    before = live.state()["epoch"]
    began = Stopwatch()
    worker = project.run_worker(settings=FLUSH, timeout_s=30)
    assert began.seconds < 15
    assert f"Crawl '{project.name}' flushed: 1 waiting, 1 in flight, 1 seen" in worker.text
    assert "new run 0; 0 waiting, 0 in flight, 0 seen" in worker.text
    assert worker.close_reason == "finished"
    assert live.state()["epoch"] != before
    assert live.key_names() == {"meta"}


def test_a_flush_refuses_while_another_worker_lives(project: Project, live: LiveFrontier) -> None:
    """Nothing is deleted. The first ERROR line names the live worker and the remedy."""
    hand = join(live, "alive", own_identity())
    hand.exchange(put(1), put(2), want=1, seeding=1)

    def dump() -> stored.Dump:
        return {name: value for name, value in live.dump().items() if not name.endswith(b":beats")}

    before = dump()
    worker = project.start_worker(settings=FLUSH)
    deadline = time.monotonic() + 240
    while worker.running:
        assert time.monotonic() < deadline
        live.call("beats", "alive", hand.epoch)
        time.sleep(0.05)
    assert dump() == before
    found = re.search(r"^\S+ \S+ \[(\S+)\] (?:ERROR|CRITICAL): (.*)$", worker.text, re.M)
    assert found
    assert found[1].startswith("scrapy_dq.")
    for words in (project.name, "worker alive", "SCHEDULER_FLUSH_ON_START", "DQ_CRAWL", "Stop that worker"):
        assert words in found[2]
    assert "Scheduler close failure" not in worker.text


# The users that the docs recommend

DOCS = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text("utf-8")


RIGHTS = dict(re.findall(r"^ACL SETUSER (\w+) on >password (.*)$", DOCS, re.M))
HARMFUL = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET *", "CLIENT KILL ID 1", "CLIENT LIST", "SCRIPT FLUSH",
    "SCRIPT KILL", "FUNCTION FLUSH", "SAVE", "SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "ACL LIST", "MONITOR",
    "SWAPDB 0 1", "GET theirs", "EVAL return(redis.call('GET','theirs')) 0", "MIGRATE h 1 dq:{a}:meta 0 1",
)  # fmt: skip
DENIED = r"(?i)permission|can't run|can't access|unknown command .FUNCTION"


def test_the_docs_have_the_rights_that_doctor_prints() -> None:
    """docs/deploying.md has the same rights as the output of `scrapy dq doctor --acl`."""
    roles = {"crawler": (), "observer": (), "feeder": ("books:start_urls",)}
    assert {role: acl_of(role, start_keys=fed) for role, fed in roles.items()} == RIGHTS
    assert roles.keys() == ROLES.keys()


@pytest.fixture
def as_user(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[[str], str]]:
    """Yield a function that makes a Redis user with the rights of the docs, and returns the user's URL."""
    with redis_server.client() as admin:

        def make(role: str) -> str:
            rights = RIGHTS[role].replace("~books:", f"~{crawl_name}:").split()
            admin.execute_command("ACL", "SETUSER", crawl_name, "on", ">password", *rights)
            return redis_server.url.replace("redis://", f"redis://{crawl_name}:password@")

        yield make
        admin.execute_command("ACL", "DELUSER", crawl_name)


@pytest.mark.parametrize("role", ["crawler", "observer", "feeder"])
def test_the_users_in_the_docs_cannot_harm_anything_outside_the_crawl(
    as_user: Callable[[str], str], role: str
) -> None:
    """The users of the docs cannot harm other keys, the server, its clients, or the scripts of others."""
    with redis.Redis.from_url(as_user(role)) as client:
        client.ping()
        for command in HARMFUL:
            with pytest.raises(redis.exceptions.ResponseError, match=DENIED):
                client.execute_command(*command.split())


def test_the_rights_of_a_crawler_suffice(
    as_user: Callable[[str], str], redis_server: RedisServer, crawl_name: str
) -> None:
    """With these rights, a crawler can call every transition."""
    url = as_user("crawler")
    with closing(LiveFrontier(redis_server.url, crawl_name)) as cleaner:
        use_everything(url, crawl_name)
        assert cleaner.key_names() == set()
    with redis.Redis.from_url(url) as client:
        assert client.info("server")


def use_everything(url: str, crawl: str) -> None:
    """As the user of *url*, make every move and call every transition of a frontier."""
    live = LiveFrontier(url, crawl, Order.PRIORITY_LIFO, Seen.COMPACT)
    a, b = HandWorker(live, "a"), HandWorker(live, "b")
    seeds = [put(n, n % 2, admission=kind) for n, kind in enumerate(Admission, 10)]
    late, now = put(20), time.monotonic()
    late.due_at = now + 0.01
    a.exchange(*(put(n) for n in range(4)), *seeds, late, want=4)
    b.exchange(want=4)
    notes = (Sent(b"", late.entry_id, now), Block(b"blocked", now + 0.02))
    assert live.call("limit", b"", 0.0, 2, 0.01) == (0.0, 2, 0.01, 0, 0)
    b.exchange(want=4, terms=Terms(0.05, 10, {b"blocked": (0, 1)}, notes))
    time.sleep(0.03)
    assert live.call("limit", b"", -1, -1) == (0.0, 0, 0.0, 0, 0)
    held = sorted(int(entry_id) for entry_id in a.held)
    a.exchange(ack(held[0]), release(held[1]), bury(held[2], "why"), want=4)
    a.rejoin("a2")
    b.reclaim("a2")
    b.exchange(want=4)
    live.call("beats", "b", b.epoch)
    live.call("members")
    assert live.call("notices").kinds == ["dead"]
    assert live.call("adopt", b.epoch, b.run, "", 1, [b"\1" * 20])[0] == 1
    known = put(30, admission=Admission.SEEN)
    known.known_as = b"\1" * 20
    bounded = put(31)
    bounded.most = 1
    b.exchange(
        known, bounded, want=1, terms=Terms(claim=Claim("list", b"", b"12345678"), forget=put(0).entry_id)
    )
    deltas = pack_tally([("sum", "a", 1), ("sum", "b", 0.5), ("max", "c", 1)])
    assert live.call("tally", "b", b.epoch, b.run, 1, deltas) == "OK"
    assert live.run(audit(live.frontier, b.epoch, b.run)).gone == 0
    live.call("note_shards", b.epoch, b.run)
    b.leave()
    live.redis.rpush(live.key("backlog:0:lost"), "in no index")
    assert live.call("flush", [])[0] == ""
    assert live.run(purge([live.frontier])) == 1
    live.disconnect()


def test_the_tests_of_rights_use_every_transition() -> None:
    """For a new transition, add a call to `use_everything`, and the needed rights to the docs."""

    by_commands = {
        "steer", "retry", "forget", "drop", "freeze", "load", "sizes", "upcoming", "probe", "known",
    }  # fmt: skip
    assert set(lua_files("transitions")) - by_commands == {
        "join", "rejoin", "exchange", "fence", "drain", "leave", "beat", "report", "flush", "limit",
        "overview", "tally", "adopt", "sweep", "audit", "purge", "notices", "shards",
    }  # fmt: skip
