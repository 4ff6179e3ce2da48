"""Commands whose output nobody takes: the work is done nevertheless, and the exit status is that of it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

import pytest

from scrapy_dq.commands.input import asking
from scrapy_dq.commands.streams import report_in_one_line
from support.given import MakeProject
from support.redis_server import RedisServer
from support.stored_counts import count


def test_what_cannot_be_printed_does_not_change_what_is_done(
    make_project: MakeProject, server: RedisServer
) -> None:
    """A reader that has gone is silent; a full disk is reported in one line, with exit status 1."""
    project = make_project([], redis_url=server.url)
    (project.folder / "urls.txt").write_text("no URL\nhttp://a.example/2\n")
    name, full = project.name, "standard output cannot be written: No space left on device"
    expected = {
        "doctor --json | true": (0, ""),
        f"push {name} http://a.example/1 | true": (0, ""),
        f"push {name} --file urls.txt 2> /dev/full": (1, ""),
        "doctor > /dev/full": (1, full),
        f"push {name} http://a.example/3 > /dev/full": (1, full),
    }
    started = {
        words: subprocess.Popen(
            ["bash", "-c", f"{shlex.join(project.command('dq'))} {words}; exit ${{PIPESTATUS[0]}}"],
            cwd=project.folder, text=True,
            env=project.environ() | {"PYTHONUNBUFFERED": "1" if "push" in words else ""},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for words in expected
    }  # fmt: skip
    for words, process in started.items():
        stderr = process.communicate(timeout=120)[1]
        status, says = expected[words]
        assert (process.returncode, len(stderr.splitlines())) == (status, bool(says)), (words, stderr)
        assert says in stderr
    with server.client() as client:
        assert count(client, name, "waiting") == 3
        assert client.scard(f"dq:{{{name}}}:members") == 0


def test_another_error_than_ctrl_c_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While `scrapy dq` is imported."""
    monkeypatch.setattr(sys, "argv", ["scrapy", "dq"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    report_in_one_line()
    cases = {"ValueError: why\n": ValueError("why"), "scrapy dq: interrupted\n": KeyboardInterrupt()}
    for says, error in cases.items():
        sys.excepthook(type(error), error, None)
        assert capsys.readouterr().err == says


def test_in_a_terminal_prose_is_wrapped_and_a_command_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that is wrapped could not be copied."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for line in ("They were put. Continue with this command:", "  scrapy crawl books -s DQ_CRAWL=books"):
        asking.say(line, argparse.Namespace(json=False))
    assert capsys.readouterr().out.splitlines() == [
        "They were put. Continue with", "this command:", "  scrapy crawl books -s DQ_CRAWL=books"
    ]  # fmt: skip
