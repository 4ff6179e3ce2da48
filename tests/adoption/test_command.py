"""`scrapy dq` and `scrapy dq adopt` as a user runs them: their output and exit status."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis
from scrapy import Request
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import FifoQueue, PriorityQueue

from adoption.conftest import Case
from adoption.test_jobdir import Left, settings_of
from scrapy_dq.adoption.source import Found, Source
from scrapy_dq.adoption.takeover import Report
from scrapy_dq.commands.adopt import _advice
from scrapy_dq.factory import config_of
from scrapy_dq.frontier import keys, peek
from support.project import Project
from support.scrapy_redis_crawl import SCRAPY_REDIS, Ended, run_dq, run_dq_each
from support.waiting import free_port, wait_until
from support.worker import Worker

PASSWORD = "s3cr3t-w0rd"


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def project(make_project: Callable[..., Project], redis_url: str) -> Project:
    return make_project(["http://127.0.0.1:9/"], redis_url=redis_url)


class Named:
    """The part of a spider that scrapy-redis's queue needs."""

    def __init__(self, name: str) -> None:
        self.name = name


def push(client: redis.Redis, project: Project, requests: list[Request], queue: type = PriorityQueue) -> None:
    theirs = queue(client, Named(project.name), f"{project.name}:requests")
    filter_ = RFPDupeFilter(client, f"{project.name}:dupefilter")
    for request in requests:
        filter_.request_seen(request)
        theirs.push(request)


def pages(count: int) -> list[Request]:
    return [Request(f"http://127.0.0.1:9/p/{n}") for n in range(count)]


def test_dq_without_a_command_lists_the_commands(project: Project) -> None:
    for done in (run_dq(project), *run_dq_each(project, [["-h"], ["--help"]])):
        assert done.returncode == 0
        assert "take over a crawl of scrapy-redis" in done.stdout
        assert done.stderr == ""


def test_the_help_of_adopt_lists_its_options(project: Project) -> None:
    """The help lists options of `adopt` and options of Scrapy."""
    (done,) = run_dq_each(project, [["adopt", "--help"]])
    assert done.returncode == 0
    for option in ("--trust-pickle", "--delete-source", "--queue ", "--crawl", "--logfile"):
        assert option in done.stdout
    assert re.search("-s(, --set)? NAME=VALUE", done.stdout)  # as argparse writes it from Python 3.13 on


USAGE: dict[str, list[str]] = {
    "invalid choice: 'adpot'": ["adpot"],
    "Did you mean 'adopt'?": ["adpot"],
    "Did you mean 'status'?": ["stats"],
    "Did you mean '--watch'?": ["status", "--wach"],
    "the following arguments are required: <spider>": ["adopt"],
    "unrecognized arguments: --no-such": ["adopt", "x", "--no-such"],
    "unrecognized arguments: y": ["adopt", "x", "y"],
    "invalid choice: 'random'": ["adopt", "x", "--queue", "random"],
    "Invalid -s value": ["adopt", "x", "-s", "novalue"],
    "expected one argument": ["adopt", "x", "-s"],
    "-a takes NAME=VALUE": ["adopt", "x", "-a", "novalue"],
}


def test_wrong_usage_exits_with_status_two(project: Project) -> None:
    """The exit status is 2, as for Scrapy's own commands."""
    for done, says in zip(run_dq_each(project, list(USAGE.values())), USAGE, strict=True):
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def one_line(done: Ended) -> str:
    """Return the only line that a failed command printed to standard error."""
    typed_wrongly = "-a takes" in done.stderr
    assert done.returncode == 1 + typed_wrongly, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("scrapy dq adopt: ")
    assert PASSWORD not in line
    return line


def test_an_adoption_that_cannot_begin_prints_one_line(project: Project, client: redis.Redis) -> None:
    """The line is on standard error, without the password. The exit status is 1, and nothing is changed."""
    push(client, project, pages(2))
    name, away = project.name, f"REDIS_URL=redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"
    cases = {
        f"did you mean {name!r}?": [name[:-1]],
        f"existing spiders: {name}": ["xyz"],
        "DQ_WORKER_TTL = 'x': expected a number": [name, "-s", "DQ_WORKER_TTL=x"],
        "DQ_TRUST_PICKLE": [name, "-s", "SCHEDULER_SERIALIZER=pickle"],
        "it cannot be imported": [name, "-s", "SCHEDULER_SERIALIZER=no_such"],
        "cannot be created: TypeError": [name, "-a", "crawler=1"],
        "--trust-pickle": [name],
        "omit --queue": [name, "--queue", "fifo"],
    }
    found = run_dq_each(project, [["adopt", *words] for words in cases.values()])
    for done, says in zip(found, cases, strict=True):
        assert says in one_line(done)
    assert "cannot be reached" in one_line(run_dq(project, "adopt", name, "-s", away))
    assert peek(client, name).phase == "absent"


def test_the_report_counts_the_adopted_requests(project: Project, client: redis.Redis) -> None:
    """The report has counts, reasons of dead letters, and next steps, without colour in a pipe."""
    push(client, project, pages(1200))
    client.zadd(
        f"{project.name}:requests", {pickle.dumps(os.getcwd): 0, b"junk": 0, pickle.dumps(os.getpid): 0}
    )
    client.sadd(f"{project.name}:dupefilter", "none")
    done = run_dq(
        project, "adopt", project.name, "--trust-pickle", "-s", f"SCHEDULER={SCRAPY_REDIS['SCHEDULER']}",
        "-s", "SCHEDULER_FLUSH_ON_START=True", "-s", "DQ_ORDER=fifo", "--delete-source",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert client.exists(f"{project.name}:requests")  # the user can still repair unreadable entries there
    for row in (
        "requests adopted 1,200", "already seen 0", "dead letters 3", "fingerprints 1,201",
        "skipped, not fingerprints 1",
    ):  # fmt: skip
        assert row in [" ".join(line.split()) for line in done.stdout.splitlines()]
    for text in (
        "1 dead letter: it names posix.getcwd",
        "DQ_ORDER is 'fifo'",
        "Set SCHEDULER and DUPEFILTER_CLASS of scrapy_dq",
        "SCHEDULER_FLUSH_ON_START is set",
        "Until then, the source is not deleted",
        f"Continue with: scrapy crawl {project.name} -s SCHEDULER={SCRAPY_REDIS['SCHEDULER']} -s ",
    ):
        assert text in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_the_report_names_a_remedy_for_each_problem(redis_url: str) -> None:
    """The problems are a source that changed, a Redis that lost data, and an empty queue."""
    case = Case(redis_url, "books")
    crawler = case.crawler()
    source = Source(None)
    source.queue, source.dupefilter = Found("books:requests", "zset", 3), Found("books:dupefilter", "set", 3)
    report = Report("here", config_of(crawler), source)
    report.changed, report.disturbed = True, True
    told = " ".join(_advice(report, crawler, ""))
    assert "books:requests has changed during the adoption: a worker of its crawl is running. Stop it" in told
    assert "Redis has lost its newest data" in told
    assert "does not exist" not in told
    source.queue = Found("boks:requests", "zset", 0)  # a wrong SCHEDULER_QUEUE_KEY
    told = " ".join(_advice(report, crawler, ""))
    assert "boks:requests is empty, or does not exist. If its name is different" in told
    case.client.close()


def test_an_embedded_redis_that_was_searched_is_named(make_project: Callable[..., Project]) -> None:
    """scrapy-redis would have used another Redis, so the output says which Redis was searched."""
    project = make_project([])
    done = run_dq(project, "adopt", project.name)
    assert done.returncode == 1
    assert "its embedded one was searched" in " ".join(done.stdout.split())


def test_a_program_gets_json(project: Project, client: redis.Redis) -> None:
    """Standard output has the report as JSON, and nothing else."""
    push(client, project, pages(12))
    client.zadd(f"{project.name}:requests", {b"junk": 0})
    done = run_dq(project, "adopt", project.name, "--trust-pickle", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["crawl"]) == (0, project.name)
    assert [found[name] for name in ("adopted", "known", "dead", "fingerprints")] == [12, 0, 1, 12]
    assert (found["complete"], found["deleted"]) == (True, [])
    assert sum(found["reasons"].values()) == 1


def test_the_adopted_crawl_has_the_given_name_and_spider_arguments(
    project: Project, client: redis.Redis
) -> None:
    """A worker with the same `--crawl` name and `-a` arguments resumes the adopted run without a warning."""
    push(client, project, pages(3))
    name = f"{project.name}-100%"
    done = run_dq(project, "adopt", project.name, "--trust-pickle", "--crawl", name, "-a", "category=poetry")
    assert f"Crawl {name!r} at" in done.stdout
    crawl_options = f"-a category=poetry -s DQ_CRAWL={project.name}-100%%"
    assert f"Continue with: scrapy crawl {project.name} {crawl_options}" in done.stdout
    assert peek(client, name).census.waiting == 3
    settings = {"DQ_CRAWL": name.replace("%", "%%"), "CLOSESPIDER_ERRORCOUNT": 1, "RETRY_ENABLED": False}
    worker = project.run_worker(settings=settings, args={"category": "poetry"})
    assert "resumed run 0; 3 waiting" in worker.text
    assert "differ in spider arguments" not in worker.text


def test_nothing_to_adopt_is_reported_as_a_failure(project: Project) -> None:
    """The output names the missing keys. The exit status is 1, so that a script can stop."""
    done = run_dq(project, "adopt", project.name)
    assert done.returncode == 1
    assert f"neither {project.name}:requests nor {project.name}:dupefilter exists" in done.stdout


def test_the_command_group_imports_no_reactor_and_no_progress_bars() -> None:
    """Scrapy imports the command group whenever it starts, so the import must be quick."""
    names = ("rich", "twisted.internet.reactor")
    look = f"import sys, scrapy_dq.commands; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"


def adopted_after_two_kills(project: Project, client: redis.Redis, requests: int, *options: str) -> Ended:
    """Kill the command twice midway, then run it to its end."""
    words, waiting = ("adopt", project.name, *options), 0
    for attempt in range(2):
        log = project.folder / f"adopt-{attempt}.log"
        adopting = Worker(project.command("dq", *words), project.folder, log, project.environ())
        project.workers.append(adopting)
        wait_until(
            lambda w=waiting: peek(client, project.name).census.waiting > w + 500, "more are adopted", 30
        )
        adopting.kill()
        waiting = peek(client, project.name).census.waiting
        assert 0 < waiting < requests
    return run_dq(project, *words)


def test_a_killed_adoption_continues_when_it_is_run_again(project: Project, client: redis.Redis) -> None:
    """After two SIGKILLs midway, nothing is stored twice, and nothing is missing."""
    requests = pages(4000)
    for request in requests[::3]:
        request.dont_filter = True
    push(client, project, requests, FifoQueue)
    push(client, project, [Request("http://127.0.0.1:9/same", dont_filter=True)] * 50, FifoQueue)
    client.lpush(f"{project.name}:requests", *[b"junk"] * 20)
    done = adopted_after_two_kills(project, client, 4050, "--trust-pickle", "--queue", "fifo")
    assert done.returncode == 0, done.stderr
    census = peek(client, project.name).census
    assert (census.waiting, census.dead, census.seen) == (4050, 20, 2666)
    assert client.scard(keys.prefix(project.name) + "adopted") == 4001


def test_a_killed_adoption_of_a_jobdir_continues_when_it_is_run_again(
    project: Project, client: redis.Redis, redis_url: str
) -> None:
    """After two SIGKILLs midway, nothing is stored twice, and nothing is missing."""
    case = Case(redis_url, project.name)
    left = Left(case, project.folder, **settings_of("PickleLifoDiskQueue"))
    requests = [Request(f"http://127.0.0.1:9/p/{n}", dont_filter=n % 3 == 0) for n in range(4000)]
    left.fill([*requests, *[Request("http://127.0.0.1:9/same", dont_filter=True)] * 50])
    case.client.close()
    done = adopted_after_two_kills(project, client, 4050, "--jobdir", str(left.folder))
    assert done.returncode == 0, done.stderr
    census = peek(client, project.name).census
    assert (census.waiting, census.dead, census.seen) == (4050, 0, 2666)
