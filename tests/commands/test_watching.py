"""`scrapy dq status --watch` in a terminal, in a pipe and as JSON, during outages, and at its end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scrapy_dq.commands import status
from scrapy_dq.commands.output.status_view import one_line, view
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.answers import Member
from scrapy_dq.frontier.model import Census
from scrapy_dq.inspection import snapshot
from scrapy_dq.inspection.place import NoSuchCrawl
from support.given import MakeProject, StartRedis
from support.live_frontier import HandWorker, LiveFrontier, ack, fail, put, puts
from support.project import Project
from support.redis_server import RedisServer
from support.terminal import Terminal
from support.waiting import wait_until

Meanwhile = Callable[..., None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Return a function that sets a step after each look (a read of the crawl). At the end comes Ctrl-C."""

    def set_steps(*steps: Callable[[], Any]) -> None:
        left = list(steps)

        def sleep(seconds: float) -> None:
            assert seconds >= 0
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        # Leave the module `time` alone, because other code also sleeps.
        own = SimpleNamespace(**vars(time) | {"sleep": sleep})
        monkeypatch.setattr(status, "time", own)

    return set_steps


def test_without_a_terminal_each_look_prints_a_line(
    dq: Any, worker: HandWorker, meanwhile: Meanwhile
) -> None:
    """Ctrl-C ends the watch with exit status 0. After the run has finished, the watch continues."""
    worker.exchange(*puts(b"a.example", 1200), want=700)
    held = sorted(int(entry) for entry in worker.held)

    def finish() -> None:
        worker.exchange(*map(ack, held[3:]), want=500)
        worker.exchange(*map(ack, (int(entry) for entry in worker.held)))

    meanwhile(lambda: worker.exchange(*map(ack, held[:2]), fail(held[2])), finish, lambda: None)
    lines = dq.text("status", "--watch").splitlines()
    assert dq.status == 0
    assert [line[8:] for line in lines[:1]] == [" 0 of 1,200, 0 failed, 1 worker"]
    assert " 3 of 1,200, 1 failed, 1 worker, " in lines[1]
    assert lines[1].endswith(" left")
    assert [line[8:] for line in lines[2:]] == [" finished, 1,200 of 1,200, 1 failed, 1 worker"] * 2


def test_with_json_each_look_prints_an_object(
    dq: Any, live: LiveFrontier, worker: HandWorker, meanwhile: Meanwhile
) -> None:
    """Each object is like the output of `status --json`. If the crawl is gone, the object has an error."""
    worker.exchange(*puts(b"a.example", 5))
    meanwhile(lambda: live.roll_back({}))
    first, second = map(json.loads, dq.lines("status", "--watch", "--json"))
    assert (first["waiting"], first["largest_partitions"][0]["partition"]) == (5, "a.example")
    assert (second["phase"], second["crawl"]) == ("absent", live.crawl)
    assert second["at"] >= first["at"]
    assert "no longer exists" in second["error"]


def test_the_watch_reports_an_outage_and_continues(
    dq_at: Callable[[str], Any], start_redis: StartRedis, meanwhile: Meanwhile
) -> None:
    """The report has no password. After the outage, the counts are printed again."""
    server = start_redis(appendonly=True, password="s3cr3t-w0rd", args=["--appendfsync", "always"])
    with closing(LiveFrontier(server.url, "crawl")) as live:
        HandWorker(live, "worker").exchange(put(1))
        live.redis.connection_pool.disconnect()
        meanwhile(server.kill, server.start)
        lines = dq_at(server.url).lines("status", "--watch")
    assert [line[8:20] for line in lines] == [" 0 of 1, 0 f", " Redis does ", " 0 of 1, 0 f"]


def test_a_mistyped_crawl_is_an_error_at_once(dq: Any, worker: HandWorker) -> None:
    """The command does not wait for a crawl of this name."""
    with pytest.raises(NoSuchCrawl, match="there is no crawl"):
        dq.text("status", "--watch", "--crawl", "another")


def test_the_rate_starts_again_with_the_next_run(
    dq: Any, live: LiveFrontier, worker: HandWorker, meanwhile: Meanwhile
) -> None:
    """The counts of the next run begin at 0."""
    worker.exchange(*puts(b"a", 10), want=10)
    worker.exchange(*map(ack, range(5)))

    def next_run() -> None:
        live.redis.hincrby(live.key("meta"), "run", 1)
        live.change_count("done", 1 - live.count("done"))

    meanwhile(lambda: None, next_run, lambda: None)
    found = [json.loads(line) for line in dq.lines("status", "--watch", "--json")]
    assert [each["pages_per_s"] is None for each in found] == [True, False, True, False]
    assert [each["run"] for each in found] == [0, 0, 1, 1]


def test_partitions_are_examined_less_often_if_that_takes_long(
    dq: Any, worker: HandWorker, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examining partitions takes at most a fiftieth of the time, so a slow look delays the next one."""
    from scrapy_dq.frontier.admin import backlog

    worker.exchange(put(1))
    calls, real = [], backlog.sizes

    def slow(*args: Any, **named: Any) -> backlog.Sizes:
        calls.append(args)
        until = time.monotonic() + 0.12
        while time.monotonic() < until:
            pass
        return real(*args, **named)

    monkeypatch.setattr(snapshot, "sizes", slow)
    meanwhile(*[lambda: None] * 5)
    assert len(dq.lines("status", "--watch", "--every", "0.1")) == 6
    assert len(calls) == 1


def looked(
    monkeypatch: pytest.MonkeyPatch, *looks: tuple[float, int, dict[str, Any]]
) -> list[tuple[float | None, float | None, str]]:
    """Return the rates of the crawl and of its worker, and the worker's state, after each look.

    Args:
        looks: the time in seconds, the pages done, and the missing shards of each look.
    """
    place: Any = SimpleNamespace(crawl="crawl", target="redis")
    watcher, found = snapshot.Watcher(place), []
    for at, done, away in looks:
        own = SimpleNamespace(monotonic=lambda at=at: at, time=lambda: 0.0)
        monkeypatch.setattr(snapshot, "time", own)
        member = Member("worker", {}, False, 0, beat=int(at), done=done)
        overview = Overview("open", "e", 0, replace(Census(), done=done), [member], **away)
        place.peek = lambda most, overview=overview: overview
        seen = watcher.snapshot()
        found.append((seen.pages_per_s, seen.workers[0]["pages_per_s"], seen.workers[0]["state"]))
    return found


def test_a_rate_covers_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate covers five seconds, or the time since the previous look if that is longer."""
    often = [(at, done, {}) for at, done in enumerate((*range(0, 110, 10), 100, 100, 100))]
    assert looked(monkeypatch, *often)[-1] == (20 / 5, 20 / 5, "alive")
    assert looked(monkeypatch, *often, (100, 100, {}), (160, 700, {}))[-1] == (10, 10, "alive")


def test_a_shard_that_misses_a_look_does_not_distort_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a shard with a million done pages answers again, these do not count for the last second."""
    away, apart = {"unreachable": (1,)}, {"apart": (1,)}
    looks = ((2_000_000, {}), (1_000_000, away), (2_000_020, {}), (2_000_030, {}), (1_000_000, apart),
             (2_000_050, {}))  # fmt: skip
    found = looked(monkeypatch, *((at, done, lost) for at, (done, lost) in enumerate(looks)))
    assert [rate for rate, _, _ in found] == [None, None, 10, 10, None, 10]
    assert [rate for _, rate, _ in found] == [None, None, 10, 10, None, 10]


STATUS: dict[str, Any] = {
    "crawl": "a crawl", "redis": "redis.example.com:6379/0", "at": 100.0, "phase": "open", "run": 3,
    "run_name": "",
    "unreachable_shards": [],
    "apart_shards": [],
    "workers": 2, "waiting": 1_234_567, "delayed": 1, "in_flight": 20, "done": 2_345_678, "failed": 4,
    "dead": 0, "seen": 3_580_270, "pages_per_s": 1234.5, "left_s": 7300.0,
    "redis_memory_bytes": 123_456_789, "redis_maxmemory_bytes": 0,
    "partitions": 10_000, "partitions_looked_at": 7_000,
    "largest_partitions": [
        {"partition": f"www.shop-{n}.example", "waiting": 999 - n, "delay_s": 0.0, "concurrency": 0,
         "blocked_s": 0.0, "takes_s": 0.0}
        for n in range(10)
    ],
    "slowest_partitions": [
        {"partition": "slow.example", "waiting": 730, "delay_s": 10.0, "concurrency": 1, "blocked_s": 1799.0,
         "takes_s": 9099.0}
    ],
}  # fmt: skip


def shown(columns: int, lines: int, missed: dict[str, Any] | None = None, **how: Any) -> str:
    """Return the view in a terminal of *columns* and *lines*."""
    file = io.StringIO()
    console = Console(file=file, width=columns, height=lines, force_terminal=True, **how)
    console.print(view(STATUS, console, missed))
    return file.getvalue()


@pytest.mark.parametrize(
    ("columns", "lines", "largest"), [(120, 40, 10), (80, 24, 7), (60, 24, 5), (46, 30, 4), (40, 18, 0)]
)
def test_the_view_fits_into_the_terminal(columns: int, lines: int, largest: int) -> None:
    """The view shows all counts, and as many partitions as there is room for, each with its name."""
    text = shown(columns, lines, color_system=None)
    rows = text.splitlines()
    assert max(map(len, rows)) <= columns
    assert len(rows) < lines
    for part in ("a crawl", "open", "65 %", "2,345,678", "1,234,567", "3,580,270", "117.7 MiB", "1,234.5"):
        assert part in text
    assert text.count("www.shop-") == largest
    assert text.count("slow.example") == (largest > 0)
    assert ("29 min 59 s" in text) == (columns >= 80)


def test_silent_shards_and_a_hold_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the view and the line show silent shards and holds."""
    monkeypatch.setitem(STATUS, "unreachable_shards", [2, 1])
    monkeypatch.setitem(STATUS, "hold", "paused")
    view, line = shown(80, 24, color_system=None), one_line(STATUS)
    assert "no answer from shards 1, 2" in view
    assert line.endswith("no answer from shards 1, 2: the data there is neither shown nor counted")
    assert "open, paused" in view
    assert line.startswith("open, paused, 2,345,682 of 3,580,270, 4 failed, 2 workers")


def test_the_view_shows_its_age_during_an_outage() -> None:
    """If there is no newer status, the view shows the age of the last one."""
    text = shown(80, 24, STATUS | {"at": 112.0, "phase": "unknown", "error": "Redis is \x1b[31mloading"})
    assert "Redis is ?[31mloading. This status is 12 s old." in text
    assert "open" not in text
    assert "2,345,678" in text


@pytest.fixture
def project(
    make_project: MakeProject, live: LiveFrontier, worker: HandWorker, server: RedisServer
) -> Project:
    """Return a project whose Redis has a crawl."""
    worker.exchange(*puts(b"a.example", 7))
    return make_project(["http://127.0.0.1:9/"], redis_url=server.url)


@pytest.fixture
def in_terminal(project: Project, live: LiveFrontier) -> Iterator[Callable[..., Terminal]]:
    """Yield a function that watches the crawl in a terminal."""
    opened: list[Terminal] = []

    def watch(*words: str, **env: str) -> Terminal:
        command = project.command("dq", "status", "--crawl", live.crawl, "--watch", "--every", "0.1", *words)
        opened.append(Terminal(command, cwd=project.folder, env=project.environ() | env))
        return opened[-1]

    yield watch
    for terminal in opened:
        terminal.close()


def test_in_a_terminal_a_view_stays_in_place(
    in_terminal: Callable[..., Terminal], worker: HandWorker
) -> None:
    """The view follows the crawl. Ctrl-C ends it with exit status 0, and the cursor is visible again."""
    terminal = in_terminal()
    terminal.wait_for("pages/s")
    worker.exchange(want=2)
    worker.exchange(*(map(ack, sorted(int(entry) for entry in worker.held))))
    terminal.wait_for("2 of 7")
    terminal.type("\x03")
    assert terminal.ended() == 0
    assert "\x1b[?25l" in terminal.text
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")
    assert "Traceback" not in terminal.text
    assert "interrupted" not in terminal.text


def test_a_dumb_terminal_gets_lines(in_terminal: Callable[..., Terminal]) -> None:
    """SIGTERM ends the watch, as Ctrl-C does."""
    terminal = in_terminal(TERM="dumb")
    terminal.wait_for("0 of 7, 0 failed, 1 worker, 0.0/s")
    assert "\x1b" not in terminal.text
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ended() == 0


def test_the_watch_ends_without_an_error_when_its_reader_has_gone(
    project: Project, live: LiveFrontier
) -> None:
    """The watch prints no error, for example behind `| head -1`."""
    command = project.command("dq", "status", "--crawl", live.crawl, "--watch", "--every", "0.1")
    process = subprocess.Popen(
        command, cwd=project.folder, env=project.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"0 of 7" in process.stdout.readline()
        process.stdout.close()
        wait_until(lambda: process.poll() is not None, "the end", 15)
        assert (process.returncode, process.stderr.read()) == (0, b"")
