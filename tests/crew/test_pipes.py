"""Messages between a crew's parent and its workers, and the start and end of a worker process."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_dq.commands.output.crawl_view import _words
from scrapy_dq.crew import worker_agent
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.launch import command_of, log_paths
from scrapy_dq.crew.pipes import MAX_BYTES, VARIABLE, Handshake, Reader, send
from scrapy_dq.crew.supervisor import SIGNALS, StopSignals, Supervisor
from scrapy_dq.crew.worker_agent import LONGEST_ERROR, Relay, WorkerAgent
from scrapy_dq.crew.worker_process import WorkerProcess, describe_exit
from support.waiting import wait_until


@pytest.fixture
def pipes() -> Iterator[tuple[int, int]]:
    """Yield the two descriptors of pipes that a worker gets."""
    (lifeline, life), (ours, theirs) = os.pipe(), os.pipe()
    yield lifeline, theirs
    for descriptor in (lifeline, life, ours, theirs):
        os.close(descriptor)


def test_the_handshake_is_taken_once_and_its_pipes_are_not_inherited(
    pipes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded Redis that a worker starts can outlive it, so it must not hold the parent's pipes."""
    text = json.dumps(Handshake(3, *pipes, "/folder", ["items.csv"]))
    for descriptor in pipes:
        os.set_inheritable(descriptor, True)
    monkeypatch.setenv(VARIABLE, text)
    found = Handshake.take()
    assert found is not None
    assert (found.number, found.journals, found.feeds) == (3, "/folder", ["items.csv"])
    assert not any(map(os.get_inheritable, pipes))
    assert VARIABLE not in os.environ
    assert Handshake.take() is None


def test_a_crawl_that_no_crew_has_started_has_no_agent() -> None:
    """A manual `scrapy crawl` has no agent. Neither has a second crawl in the process of a crew's worker."""
    with pytest.raises(NotConfigured):
        WorkerAgent.from_crawler(Crawler(Spider))


def test_a_parent_that_does_not_read_delays_no_worker() -> None:
    """If the pipe has no room for a report, the report is dropped. Each sent report arrives whole."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    reader = Reader(ours)
    sent = sum(send(theirs, {"number": number, "text": "x" * 300}) for number in range(1000))
    assert 0 < sent < 1000
    assert not send(theirs, {"text": "x" * MAX_BYTES})
    assert [report["number"] for report in reader.read()] == list(range(sent))
    os.write(theirs, b'{"a":')
    assert reader.read() == []
    os.write(theirs, b"1}\n")
    assert reader.read() == [{"a": 1}]
    os.close(theirs)
    assert reader.read() == []
    reader.close()
    assert not send(theirs, {})


def test_a_worker_that_cannot_be_started_leaves_no_pipe(tmp_path: Path, pipes: tuple[int, int]) -> None:
    """Otherwise each try would leave two descriptors open."""
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(OSError, match="nowhere"):
            WorkerProcess(1, ["/nowhere/scrapy"], tmp_path / "log", pipes[0], ("", []))
    assert os.listdir("/proc/self/fd") == before


class ViewOfOne:
    """A view that raises an error as soon as it has to show a running worker."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, crew: Supervisor) -> None:
        self.process = crew.slots[0].process
        if self.process:
            raise RuntimeError("an unexpected error")

    def say(self, line: str) -> None:
        self.said.append(line)


def supervised(tmp_path: Path, view: ViewOfOne, *command: str) -> Supervisor:
    monitor: Any = SimpleNamespace(overview=None, problem="", at=0.0, poll=lambda: None)
    logs = [tmp_path / "log"]
    return Supervisor(command, logs, ("", []), restarts=0, grace_s=0.1, monitor=monitor, view=view)


def test_an_unexpected_error_leaves_no_worker_behind(tmp_path: Path) -> None:
    """Each worker notices that its parent is gone, as if the parent had been killed."""
    view = ViewOfOne()
    waits = f"import json, os; os.read(json.loads(os.environ[{VARIABLE!r}])[1], 1)"
    with pytest.raises(RuntimeError, match="an unexpected error"):
        supervised(tmp_path, view, sys.executable, "-c", waits).work(StopSignals())
    process = view.process
    assert process is not None
    wait_until(lambda: process.poll() == 0, "the worker has ended")
    (tmp_path / "log").unlink()
    assert process.log_tail() == []


def test_a_worker_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    view = ViewOfOne()
    supervised(tmp_path, view, "/nowhere/scrapy").work(StopSignals())
    assert view.said[0].startswith("worker 1 cannot be started: [Errno 2]")
    assert view.said[-1] == "No worker is left, and the run is not finished."


class ViewOfAdvance:
    """A view that lets the run advance until the worker has started *times* times."""

    def __init__(self, times: int) -> None:
        self.said: list[str] = []
        self.census = SimpleNamespace(done=0, failed=0)
        self._times = times

    @property
    def starts(self) -> int:
        return sum(", pid " in line for line in self.said)

    def show(self, crew: Supervisor) -> None:
        self.census.done += self.starts < self._times

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.mark.parametrize("advances", [0, 5])
def test_restarts_are_counted_while_nothing_gets_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advances: int
) -> None:
    """When the crawl advances, the count begins again. So a crawl of weeks may lose many workers."""
    monkeypatch.setattr("scrapy_dq.crew.worker_process.FIRST_PAUSE_S", 0.0)
    view = ViewOfAdvance(advances)
    seen = SimpleNamespace(epoch="epoch", run=0, phase="open", stops=0, census=view.census)
    monitor: Any = SimpleNamespace(overview=seen, problem="", at=math.inf, poll=lambda: None)
    command = ("sh", "-c", "kill -9 $$")
    crew = Supervisor(
        command, [tmp_path / "log"], ("", []), restarts=2, grace_s=0.1, monitor=monitor, view=view
    )
    crew.work(StopSignals())
    assert view.starts == (advances + 2 if advances else 3)
    assert "worker 1 is not restarted: 2 restarts are the limit (--restarts)" in view.said


def test_a_flood_of_errors_is_not_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's log has all errors."""
    monkeypatch.setattr(worker_agent, "time", SimpleNamespace(monotonic=lambda: 100.0))
    ours, theirs = os.pipe()
    relay, reader = Relay(theirs), Reader(ours)
    for number in range(20):
        relay.handle(logging.makeLogRecord({"msg": f"error {number}", "levelno": logging.ERROR}))
    os.close(theirs)
    assert [report["error"] for report in reader.read()] == [f"error {number}" for number in range(5)]
    reader.close()


def test_an_error_of_the_longest_text_is_relayed() -> None:
    """A character may take several bytes, and the size of a report is limited in bytes."""
    ours, theirs = os.pipe()
    relay, reader = Relay(theirs), Reader(ours)
    error, longest = ValueError("\U0001f600" * 1000), "\U0001f600" * LONGEST_ERROR + "..."
    raised = (ValueError, error, None)
    relay.handle(logging.makeLogRecord({"msg": longest, "levelno": logging.ERROR, "exc_info": raised}))
    relay.handle(logging.makeLogRecord({"msg": '\ud83d"\\' * 1000, "levelno": logging.ERROR}))
    os.close(theirs)
    first, second = (report["error"] for report in reader.read())
    assert first.startswith(f"{longest}: ValueError: \U0001f600")
    assert second == '?"\\' * (LONGEST_ERROR // 3) + "..."
    reader.close()


def test_the_command_line_goes_to_each_worker() -> None:
    """A worker gets the options that `scrapy crawl` knows. The crew's own settings are last, so they win."""
    options = argparse.Namespace(
        spider="books", workers=2, spargs=["a=1 2"], set=["X=1", "REDIS_URL=redis://:pw@there/0"],
        crawl="50%", output=["items.csv"], overwrite_output=None, loglevel="INFO", nolog=True,
    )  # fmt: skip
    assert command_of("books", options, {"X": "2", "FEED_STORAGES": {"": None}})[2:] == [
        sys.path[0], "crawl", "books", "-a", "a=1 2", "-s", "X=1",
        "-s", "REDIS_URL=redis://:pw@there/0", "-o", "items.csv", "-L", "INFO", "--nolog",
        "-s", "DQ_CRAWL=50%%", "-s", "X=2", "-s", 'FEED_STORAGES={"": null}',
    ]  # fmt: skip
    again = " ".join(_words(options))
    assert shlex.split(again) == [
        "books", "-w", "2", "-a", "a=1 2", "-s", "X=1", "-s", "REDIS_URL=...", "-o", "items.csv",
        "--crawl", "50%",
    ]  # fmt: skip


def test_a_worker_takes_no_module_from_the_current_folder(tmp_path: Path) -> None:
    """If /tmp is the current folder, other users can put modules there. `scrapy crawl` also ignores them."""
    for name in ("queuelib", "json", "scrapy_dq"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of another user')")
    options = argparse.Namespace(
        spargs=[], set=[], crawl="", output=None, overwrite_output=None, loglevel="", nolog=False
    )
    done = subprocess.run(
        command_of("books", options, {}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "code of another user" not in done.stderr
    assert "no active project" in done.stdout


def test_logs_of_the_crawl_before_are_kept(tmp_path: Path) -> None:
    """Each crawl has its own folder of logs, even with an odd name. A LOG_FILE gets the worker's number."""
    for text in ("first", "second"):
        for log in log_paths(2, tmp_path, None, "../50%", tmp_path):
            log.write_text(text)
    (folder,) = tmp_path.iterdir()
    assert sorted(log.name for log in folder.glob("*.log*")) == [
        "worker-1.log", "worker-1.log.1", "worker-2.log", "worker-2.log.1"
    ]  # fmt: skip
    assert (folder / "worker-1.log.1").read_text() == "first"
    assert folder.stat().st_mode & 0o777 == 0o700  # no other user may read URLs and messages of callbacks
    assert log_paths(1, tmp_path, str(tmp_path / "x.log"), "c", tmp_path) == [tmp_path / "x-1.log"]


def test_logs_are_written_to_no_folder_that_others_can_write_to(tmp_path: Path) -> None:
    """In such a folder, another user's link could lead to any file of the current user."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books").chmod(0o777)
    (tmp_path / "shop").symlink_to(tmp_path)
    for name in ("books", "shop"):
        with pytest.raises(CrewError, match="only you can write to"):
            log_paths(1, tmp_path, None, name, tmp_path)
    assert os.listdir(tmp_path / "books") == []


def test_the_folders_above_the_logs_are_private_under_any_umask(tmp_path: Path) -> None:
    """A user who can write to such a folder could replace the logs. The current user's links are harmless."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    (tmp_path / "moved").symlink_to(disk)
    before = os.umask(0)
    try:
        for home in (tmp_path / "dq", tmp_path / "moved"):
            assert log_paths(1, None, None, "books", home)
            for folder in (home, home / "logs"):
                assert folder.stat().st_mode & 0o777 == 0o700
                folder.chmod(0o770)
                with pytest.raises(CrewError, match=f"{folder} is not a folder that only you can write to"):
                    log_paths(1, None, None, "books", home)
                folder.chmod(0o700)
    finally:
        os.umask(before)


def test_a_lock_file_of_the_logs_that_is_locked_as_a_whole_is_named(tmp_path: Path) -> None:
    """A user who can read the file can lock it. Earlier versions made the file readable for other users."""
    assert log_paths(1, tmp_path, None, "shop", tmp_path)
    assert (tmp_path / "shop" / "in-use.lock").stat().st_mode & 0o777 == 0o600
    lock = tmp_path / "books" / "in-use.lock"
    lock.parent.mkdir()
    lock.touch()
    code = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.lockf(file, fcntl.LOCK_SH)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(CrewError, match=r"in-use\.lock is locked .* --log-dir"):
            log_paths(1, tmp_path, None, "books", tmp_path)
        other.communicate()


def test_two_crews_of_one_crawl_have_separate_logs(tmp_path: Path) -> None:
    """The later crew takes numbers that the first crew does not use. A crew that ends frees its numbers."""
    first = log_paths(2, tmp_path, None, "books", tmp_path)
    first[0].write_text("of the first")
    code = (
        "import sys; from pathlib import Path; from scrapy_dq.crew.launch import log_paths\n"
        "print(*(log.name for log in log_paths(2, Path(sys.argv[1]), None, 'books', Path())))"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout == "worker-3.log worker-4.log\n"
    assert first[0].read_text() == "of the first"


def test_the_exit_status_of_a_worker_is_reported_in_words() -> None:
    """The text has the name of the signal, if the signal has a name."""
    ends = [describe_exit(status) for status in (1, -9, -250)]
    assert ends == ["exit status 1", "killed by SIGKILL", "killed by signal 250"]


def test_repeated_hang_ups_do_not_count_as_a_second_signal() -> None:
    """The shell and the kernel may both send SIGHUP, perhaps after a SIGTERM. But each Ctrl-C counts."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        stops = StopSignals()
        stops.listen()
        for number, count in (
            (signal.SIGHUP, 1), (signal.SIGHUP, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 2),
            (signal.SIGINT, 3),
        ):  # fmt: skip
            signal.raise_signal(number)
            assert stops.count == count
    finally:
        for number, what in before.items():
            signal.signal(number, what)
