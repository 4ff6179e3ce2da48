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
    """Yield a function that starts a process and returns it with its own identity."""
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
    """This holds for this process and for a child."""
    own = own_identity()
    child, identity = start_child()
    assert child.poll() is None
    assert not certainly_dead(own, own)
    assert not certainly_dead(identity, own)
    assert identity["pid"] == child.pid


def test_a_killed_process_is_dead_even_as_a_zombie(start_child: Child) -> None:
    """A zombie no longer crawls, even if its parent never waits for it."""
    own = own_identity()
    child, identity = start_child()
    child.kill()
    wait_until(lambda: f"{child.pid} (" in _stat(child.pid) and ") Z " in _stat(child.pid), "a zombie")
    assert certainly_dead(identity, own)
    child.wait(10)
    assert not _stat(child.pid)
    assert certainly_dead(identity, own)


def test_a_pid_that_was_given_to_another_process_is_known_by_its_start() -> None:
    """The worker is dead although another process has its pid."""
    own = own_identity()
    assert certainly_dead(own | {"pid_start": str(int(own["pid_start"]) - 1)}, own)
    assert certainly_dead(own | {"pid_start": ""}, own)


@pytest.mark.parametrize("field", ["host", "boot", "pid_namespace"])
def test_a_process_in_another_pid_namespace_is_never_certainly_dead(field: str) -> None:
    """A pid of another host, boot or container means nothing here, even if the pid is free."""
    own = own_identity()
    gone = own | {"pid": 2**22 + 1, "pid_start": "1"}
    assert certainly_dead(gone, own)
    assert not certainly_dead(gone | {field: "another"}, own)
    assert not certainly_dead({key: gone[key] for key in gone if key != field}, own)


@pytest.mark.parametrize("field", ["boot", "pid_namespace"])
def test_without_information_from_the_system_no_process_is_certainly_dead(field: str) -> None:
    """Without the field, two identities that look equal may belong to different systems."""
    own = own_identity() | {field: ""}
    assert not certainly_dead(own | {"pid": 2**22 + 1, "pid_start": "1"}, own)


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def test_a_process_that_proc_hides_from_us_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """If /proc is mounted with hidepid, another user's live worker is invisible, so only the TTL decides."""
    own = own_identity()
    monkeypatch.setattr(identity_module, "_stat", lambda pid: [])
    assert not certainly_dead(own, own)

    def not_ours(pid: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    assert not certainly_dead(own, own)
