"""The identity of a worker, and which worker on this machine is certainly dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_dq.frontier.worker import identity as identity_module
from scrapy_dq.frontier.worker.identity import certainly_dead, own_identity
from support.waiting import wait_until

Child = Callable[[], tuple["subprocess.Popen[str]", dict[str, Any]]]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(),
    reason="without Linux's /proc, only the heartbeat tells who is dead",
)


@pytest.fixture
def start_child() -> Iterator[Child]:
    """Yield a function that starts a process and returns it with the identity that it gives itself."""
    children: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], dict[str, Any]]:
        code = "import json, sys; from scrapy_dq.frontier.worker.identity import own_identity\n"
        code += "print(json.dumps(own_identity()), flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None
        return child, json.loads(child.stdout.readline())

    yield start
    for child in children:
        child.kill()
        child.communicate(timeout=120)


def test_a_process_is_not_dead_while_it_lives(start_child: Child) -> None:
    """Neither this one nor another."""
    own = own_identity()
    child, identity = start_child()
    assert child.poll() is None
    assert not certainly_dead(own, own)
    assert not certainly_dead(identity, own)
    assert identity["pid"] == child.pid


def test_a_killed_process_is_dead_before_and_after_it_was_waited_for(start_child: Child) -> None:
    """A zombie crawls nothing any more, even if its parent never asks for it."""
    own = own_identity()
    child, identity = start_child()
    child.kill()
    wait_until(lambda: f"{child.pid} (" in _stat(child.pid) and ") Z " in _stat(child.pid), "a zombie")
    assert certainly_dead(identity, own)
    child.wait(10)
    assert not _stat(child.pid)
    assert certainly_dead(identity, own)


def test_a_pid_that_was_given_to_another_process_is_known_by_its_start() -> None:
    """The worker is dead although a process has its pid."""
    own = own_identity()
    assert certainly_dead(own | {"pid_start": str(int(own["pid_start"]) - 1)}, own)
    assert certainly_dead(own | {"pid_start": ""}, own)


@pytest.mark.parametrize("field", ["host", "boot", "pid_namespace"])
def test_nothing_is_certain_about_another_space_of_pids(field: str) -> None:
    """Another host, another boot, another container: its pid means nothing here, even if it is free."""
    own = own_identity()
    gone = own | {"pid": 2**22 + 1, "pid_start": "1"}
    assert certainly_dead(gone, own)
    assert not certainly_dead(gone | {field: "another"}, own)
    assert not certainly_dead({key: gone[key] for key in gone if key != field}, own)


@pytest.mark.parametrize("field", ["boot", "pid_namespace"])
def test_nothing_is_certain_where_the_system_gives_no_information(field: str) -> None:
    """Two systems without boot ids are not the same one."""
    own = own_identity() | {field: ""}
    assert not certainly_dead(own | {"pid": 2**22 + 1, "pid_start": "1"}, own)


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def test_a_process_that_proc_hides_from_us_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc mounted hidepid, another user's living worker looks like none: only the TTL judges it."""
    own = own_identity()
    monkeypatch.setattr(identity_module, "_stat", lambda pid: [])
    assert not certainly_dead(own, own)

    def not_ours(pid: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    assert not certainly_dead(own, own)
