"""`scrapy dq events`: the events of a crawl, their authors, and curves of the crawl's speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from scrapy_dq.commands.report import curve
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.worker.identity import own_name
from support.given import MakeProject, StartSite
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, put
from support.redis_server import RedisServer
from support.samples import BEGAN, add_samples
from support.scrapy_redis_crawl import run_dq_each
from support.waiting import wait_until

SPIDER = replace(IDENTITY, starts="{}")


@pytest.fixture
def spider(live: LiveFrontier) -> HandWorker:
    """Return a worker that has joined as a spider's worker."""
    return HandWorker(live, "spider", SPIDER)


def test_events_are_listed_oldest_first(dq: Any, live: LiveFrontier, spider: HandWorker) -> None:
    """Each event has a description, a time and an author. Programs get the same list."""
    steer(live.redis, live.crawl, Command.PAUSE, "ann@desk")
    found = dq.listed("events")
    assert [(event["kind"], event["who"], event["run"]) for event in found] == [
        ("began", "spider", 0), ("joined", "spider", 0), ("pause", "ann@desk", 0),
    ]  # fmt: skip
    first, head, *lines = dq.text("events").splitlines()
    assert first == "3 events."
    assert head.split() == ["when", "run", "what", "who"]
    assert ["the run began" in lines[0], "a worker joined" in lines[1], "ann@desk" in lines[2]] == [True] * 3


def test_the_newest_events_are_listed(dq: Any, live: LiveFrontier, spider: HandWorker) -> None:
    """-n sets the number of events."""
    for n in range(5):
        steer(live.redis, live.crawl, Command.PAUSE, f"user{n}@desk")
    assert [event["who"] for event in dq.listed("events", "-n", "2")] == ["user3@desk", "user4@desk"]
    assert dq.text("events", "-n", "2").startswith("7 events; the newest 2 are shown.\n")


def test_curves_are_drawn_before_the_events(
    dq: Any, live: LiveFrontier, spider: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curve's line has 80 columns, and ends with the newest and largest values. --json has all samples."""
    assert dq.text("events", "--curves").startswith("There is no sample yet: workers take one each 10 s.\n")
    add_samples(live, 60)
    first, rate, waiting, failed, workers, memory, head, *_ = dq.text("events", "--curves").splitlines()
    assert (first, head) == ("60 samples of 9 min 50 s.", "2 events.")
    assert rate.startswith("pages/s ")
    assert rate.endswith(" 100.0, at most 100.1")
    shown = rate.removeprefix("pages/s").strip().split()[0]
    assert {"▄", "▁", "█"} <= set(shown) or {"▅", "▁", "█"} <= set(shown)
    assert waiting.endswith(" 4,107, at most 10,007")
    assert (failed.split()[0], workers.split()[0]) == ("failed/s", "workers")
    assert memory.endswith(" 1.0 GiB, at most 1.0 GiB")
    found = dq.found("events", "--curves")["samples"]
    assert found[1] == {
        "at": BEGAN + 10, "run": 0, "done": 1000, "failed": 0, "dead": 1, "waiting": 9900, "delayed": 7,
        "in_flight": 16, "workers": 2, "seen": 1000, "memory_bytes": 2**30 + 1024, "exchanges": 50,
        "exchange_s": 0.1, "errors": 0, "outage_s": 0.0, "pages_per_s": 50.0, "failed_per_s": 0.0,
        "exchange_ms": 2.0,
    }  # fmt: skip
    assert (len(found), found[0]["pages_per_s"], found[35]["pages_per_s"]) == (60, None, 0.0)
    monkeypatch.setattr("rich.console.Console.encoding", "ascii")
    assert dq.text("events", "--curves").isascii()  # for a terminal without block characters
    add_samples(live, 360)
    assert len(dq.found("events", "--curves")["samples"]) == 10 + 60  # one sample per minute


CURVES = {
    "": ([], 5),
    "▁█": ([0, 3], 5),
    "▁": ([0, 0], 1),
    "▁▁": ([0.0, 0.0], 5),
    "█ █": ([2, None, 2], 5),
    "▅█": ([1, 1, None, 2, 2, 1.0], 2),
    "  ": ([None, None], 5),
}


@pytest.mark.parametrize("line", CURVES)
def test_a_curve_is_a_line_of_blocks(line: str) -> None:
    """The scale of a curve begins at zero. If space is short, a block shows the mean of several values."""
    assert curve(*CURVES[line]) == line


def test_a_text_does_not_control_the_terminal(dq: Any, live: LiveFrontier, spider: HandWorker) -> None:
    """Users, spiders and sites choose the texts of events, so control characters are not printed."""
    for who in (b"\x1b[2J", b"\xff" * 80):
        record = msgpack.packb([0, 1, b"joined", who, 1, b"\r\n"])
        live.redis.rpush(live.key("journal"), record)
    text = dq.text("events")
    assert text.startswith("4 events.\n")
    assert text.replace("\n", "").isprintable()


def test_the_event_of_a_command_names_its_author(dq: Any, live: LiveFrontier, spider: HandWorker) -> None:
    """The author is the user of the process, with the host's name."""
    spider.exchange(put(1))
    for name in ("pause", "resume", "stop"):
        dq.text(name)
    dq.text("limit", "--site", "a.example", "--delay", "2")
    assert [(event["kind"], event["who"]) for event in dq.listed("events")[2:]] == [
        (kind, own_name()) for kind in ("pause", "resume", "stop", "limit")
    ]
    user, _, host = own_name().partition("@")
    assert user
    assert host


def test_a_user_without_a_name_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, the user id may have no name."""
    monkeypatch.setattr("getpass.getuser", lambda: {}["no entry for this uid"])
    assert own_name().startswith(f"{os.getuid()}@")


def test_the_events_of_a_crawl_include_the_death_of_a_worker(
    make_project: MakeProject, start_site: StartSite, server: RedisServer
) -> None:
    """A worker is killed while it has leases. The next worker finishes the run and leaves."""
    site = start_site(pages=60, latency_s=0.1)
    project = make_project([site.start_url], redis_url=server.url)
    dying = project.start_worker(settings={"CONCURRENT_REQUESTS": 1})
    wait_until(lambda: len(project.count(pids=[dying.pid])) >= 3, "the worker crawls", 30)
    os.kill(dying.pid, signal.SIGKILL)
    dying.wait(30)
    with server.client() as client:
        (member,) = peek(client, project.name).members
    other = project.start_worker()
    other.wait(120)
    assert other.close_reason == "finished"
    (done,) = run_dq_each(project, [["events", project.name, "--curves", "--json"]])
    found = json.loads(done.stdout)
    events, samples = found["events"], found["samples"]
    pids = {"joined": (dying.pid, other.pid), "died": (dying.pid,), "left": (other.pid,)}
    assert [event["kind"] for event in events] == [
        "began", "joined", "joined", "died", "finished", "left",
    ]  # fmt: skip
    for kind, expected in pids.items():
        who = [event["who"] for event in events if event["kind"] == kind]
        assert [f"-{pid}-" in name for name, pid in zip(who, expected, strict=True)] == [True] * len(expected)
    assert events[3]["count"] == member.in_flight
    assert events[5]["about"] == "finished"
    assert samples[-1]["done"] == len(site.paths)
    assert samples[-1]["workers"] == 0


def test_new_events_are_followed_until_ctrl_c(
    make_project: MakeProject, server: RedisServer, live: LiveFrontier, spider: HandWorker
) -> None:
    """The newest event is printed first, then each new event once."""
    project = make_project([], redis_url=server.url)
    process = subprocess.Popen(
        project.command("dq", "events", "--crawl", live.crawl, "--follow", "-n", "1", "--json"),
        cwd=project.folder, env=project.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert json.loads(process.stdout.readline())["kind"] == "joined"
        for word in (Command.PAUSE, Command.RESUME):
            steer(live.redis, live.crawl, word, "ann@desk")
            assert json.loads(process.stdout.readline())["kind"] == word.value
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert rest == ""
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.wait()
