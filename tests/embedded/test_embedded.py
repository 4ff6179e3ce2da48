"""Processes share an embedded Redis: the first process starts the server, and the last one stops it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from scrapy_dq.embedded import EmbeddedRedis
from support.embedded_place import Place, every_kind, kill, lives, run_python


@every_kind
def test_users_share_one_server_and_the_last_one_stops_it(place: Place) -> None:
    """The first acquire() starts the server, the last release() stops it, and the data is still there."""
    first, second = place.user(), place.user()
    path = first.acquire()
    assert (second.acquire(), second.acquire()) == (path, path)
    assert first.pid == second.pid
    assert place.client(second).set("page", "1")
    first.release()
    first.release()
    assert place.client(second).get("page") == b"1"
    second.release()
    assert not lives(second.pid)
    assert not path.exists()
    assert place.client(first).get("page") == b"1"
    assert first.pid != second.pid


def test_six_processes_that_start_at_once_get_one_server(place: Place) -> None:
    """The processes start at the same moment. Only the last process that leaves stops the server."""
    go = place.home / "go"
    users = [place.process(go) for _ in range(6)]
    for user in users:
        user.wait_for(1)
    go.touch()
    assert len({user.server() for user in users}) == 1
    assert place.log().count("is starting") == 1
    (pid, _) = users[0].server()
    for user in users[:-1]:
        user.leave()
        assert lives(pid)
    users[-1].leave()
    assert not lives(pid)


@every_kind
def test_a_release_never_stops_the_server_of_a_process_that_acquires(place: Place) -> None:
    """In any order of starts and stops, a process that has acquired gets answers. No write is lost."""

    def work(user: EmbeddedRedis) -> None:
        for _ in range(8):
            with redis.Redis(unix_socket_path=str(user.acquire()), socket_timeout=5) as client:
                client.incr("uses")
            user.release()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [place.user() for _ in range(6)]))
    assert place.client(place.user()).get("uses") == b"48"
    assert place.log().count("is starting") > 1, "the server was never restarted"


def test_a_process_that_acquires_as_another_has_released_is_not_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last process that leaves holds users.lock exclusively, but only while it holds start.lock."""
    leaving, coming = place.user(), place.user()
    start_lock, acquired = leaving._directory.start_lock, []
    leaving.acquire()

    @contextmanager
    def then_another_comes(deadline: float) -> Iterator[None]:
        with start_lock(deadline):
            yield
        acquired.append(coming.acquire())

    monkeypatch.setattr(leaving._directory, "start_lock", then_another_comes)
    leaving.release()
    assert acquired
    assert place.client(coming).ping()


@every_kind
def test_the_server_is_not_a_child_of_its_starter(place: Place) -> None:
    """The server inherits only one lock, which shows that it lives. It is never a child of this process."""
    user = place.acquired()
    held = {Path(file.path).name for file in psutil.Process(user.pid).open_files()}
    assert "server.lock" in held
    assert not held & {"start.lock", "users.lock"}
    assert user.pid not in {child.pid for child in psutil.Process().children()}
    kill(user.pid)
    assert not [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE]


def test_a_forked_child_cannot_release_for_its_parent(place: Place) -> None:
    """A forked child inherits the object. A release in the child does not end the parent's use."""
    script = """
        import os, redis
        parent, other = user(), user()
        path = parent.acquire()
        if not (child := os.fork()):
            parent.release()
            os._exit(0)
        os.waitpid(child, 0)
        other.acquire()
        other.release()
        print(other.pid == parent.pid, redis.Redis(unix_socket_path=str(path)).ping())
        parent.release()
    """
    assert run_python(script, place) == "True True\n"


def test_a_child_forked_while_a_lock_is_held_delays_nothing(place: Place) -> None:
    """The child has copies of the descriptors, but a lock is free as soon as the parent releases it."""
    script = """
        import fcntl, os, signal, time
        users = [user(start_timeout_s=2) for _ in range(2)]
        def hold_and_fork(hold=users[0]._directory.hold):
            global child
            hold()
            if not (child := os.fork()):
                time.sleep(60)
                os._exit(0)
        users[0]._directory.hold = hold_and_fork
        users[0].acquire()
        path = users[1].acquire()
        server.STOP_TIMEOUT_S = 0.1
        with open(path.parent / "start.lock") as hanging:
            fcntl.flock(hanging, fcntl.LOCK_EX)
            users[0].release()
        server.STOP_TIMEOUT_S = 20
        users[1].release()
        print(path.exists())
        os.kill(child, signal.SIGKILL)
    """
    assert run_python(script, place) == "False\n"


def test_without_posix_locks_the_module_imports_and_acquire_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, a project with a REDIS_URL can still import the package."""
    (tmp_path / "fcntl.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    script = """
        try:
            EmbeddedRedis(server.Path("dq")).acquire()
        except EmbeddedError as error:
            print(error)
    """
    assert "REDIS_URL" in run_python(script)
