"""Ctrl-C at the start, at the end and in a terminal: the output is short, without a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from crew.conftest import SetScene
from scrapy_dq.commands.outputs import export_feeds
from scrapy_dq.crew.errors import Interrupted
from scrapy_dq.crew.supervisor import StopSignals
from support.terminal import Terminal
from support.waiting import wait_until

INTERRUPT = "import signal\nsignal.raise_signal(signal.SIGINT)\n"


def test_ctrl_c_while_the_spider_is_loaded_prints_one_line(scene: SetScene) -> None:
    """Ctrl-C comes before the crawl has begun."""
    here = scene(pages=3)
    (here.project.folder / "tree_project" / "spiders" / "spider.py").write_text(INTERRUPT)
    crew = here.crew("-w", "1")
    assert crew.wait(10) != 0
    assert crew.err.splitlines() == ["scrapy dq crawl: interrupted"]


def test_ctrl_c_while_python_exits_does_not_change_the_exit_status() -> None:
    """At its exit, Python resets signal handlers and then destroys modules. No signal has an effect then."""
    program = (
        "import os, signal\nfrom scrapy_dq.crew.supervisor import SIGNALS, StopSignals\n\n\n"
        "class Last:\n    def __del__(self, signals=SIGNALS, kill=os.kill, pid=os.getpid(), say=os.write):\n"
        "        for number in signals:\n            kill(pid, number)\n        say(1, b'reached')\n\n\n"
        "last = Last()\nStopSignals().listen()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"reached", b"")


@pytest.mark.parametrize("of_crew", [0, 1])
def test_ctrl_c_between_the_crew_and_its_export_is_not_lost(of_crew: int) -> None:
    """Ctrl-C comes after the message about the export, and before the export first checks for signals."""

    class Export:
        def run(self, run: Any, bar: Any, stopped: Any, **_: bool) -> None:
            stopped()

    stops, exports = StopSignals(), Export()
    stops.count = of_crew
    export_feeds(exports, None, stops, of_crew, finished=True, began=False)  # type: ignore[arg-type]
    stops.count += 1
    with pytest.raises(Interrupted):
        export_feeds(exports, None, stops, of_crew, finished=True, began=False)  # type: ignore[arg-type]


def test_ctrl_c_during_the_final_report_changes_nothing(scene: SetScene) -> None:
    """The crew prints its table and keeps the exit status. A second Ctrl-C ends a crew that hangs."""
    here = scene(pages=3)
    command = [*here.project.command("dq", "crawl", here.project.name), "-w", "1", "-o", "items.jsonl"]
    for signals, status in ((1, 0), (2, -signal.SIGINT)):
        here.feed.unlink(missing_ok=True)
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        with suppress(BlockingIOError):
            while True:
                os.write(theirs, b"x" * 4096)
        os.set_blocking(theirs, True)
        crew = subprocess.Popen(
            command, cwd=here.project.folder, env=here.project.environ(), stdout=theirs,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            wait_until(here.feed.exists, "the feed is written", 20)
            for _ in range(signals):
                wait_until(lambda: hangs(crew), "the crew waits for a reader of its output", 20)  # noqa: B023
                crew.send_signal(signal.SIGINT)
            wait_until(lambda: hangs(crew) or crew.poll() is not None, "the last signal has arrived")  # noqa: B023
            shown = b""
            while found := os.read(ours, 65536):
                shown += found
            assert crew.wait(10) == status
            assert ("items.jsonl: 3 items" in shown.decode()) == (status == 0)
            assert crew.stderr is not None
            assert "Traceback" not in crew.stderr.read()
        finally:
            os.close(ours)
            crew.kill()
            crew.wait()
            assert crew.stderr is not None
            crew.stderr.close()


def hangs(crew: subprocess.Popen[str]) -> bool:
    """Return whether the crew waits for a reader of its output, without a pending signal."""
    try:
        process = Path("/proc", str(crew.pid))
        pending = re.findall(r"^(?:Sig|Shd)Pnd:\t(\w+)$", (process / "status").read_text(), re.M)
        return not any(int(mask, 16) for mask in pending) and "pipe_write" in (process / "wchan").read_text()
    except OSError:
        return False


def test_ctrl_c_in_the_live_view_prints_how_to_continue(scene: SetScene) -> None:
    """Ctrl-C stops the workers, and the crew prints the command that continues the crawl."""
    here = scene(pages=60, latency_s=0.3)
    command = [*here.project.command("dq", "crawl", here.project.name), "-w", "1"]
    terminal = Terminal(command, cwd=here.project.folder, env=here.project.environ())
    try:
        terminal.wait_for("crawling", 20)
        terminal.type("\x03")
        terminal.ended(20)
        assert "Stopping: the workers finish" in terminal.text
        assert "Continue with:" in terminal.text
    finally:
        terminal.close()
