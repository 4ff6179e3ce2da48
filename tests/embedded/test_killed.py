"""An embedded Redis, or a process that uses it, is killed, stuck, interrupted or suspended."""

from __future__ import annotations

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_dq.embedded import EmbeddedError
from scrapy_dq.embedded import server as embedded
from scrapy_dq.embedded.directory import RedisDirectory
from support.embedded_place import Place, every_kind, kill, lives, suspended
from support.waiting import Stopwatch, patience, wait_until


def test_a_server_outlives_the_kill_of_all_its_users(place: Place) -> None:
    """After kill -9 of all users, the next user finds the server and its data, and can stop it."""
    users = [place.process(), place.process()]
    pid, path = users[0].server()
    users[1].server()
    redis.Redis(unix_socket_path=path).set("page", "1")
    for user in users:
        user.signal_group(signal.SIGKILL)
    heir = place.user()
    assert place.client(heir).get("page") == b"1"
    assert heir.pid == pid
    heir.release()
    assert not lives(pid)


def test_ctrl_c_in_the_terminal_does_not_end_the_server(place: Place) -> None:
    """SIGINT and SIGHUP go to the worker's process group and session. The server is in neither of them."""
    user = place.process()
    pid, path = user.server()
    user.signal_group(signal.SIGINT)
    assert redis.Redis(unix_socket_path=path, socket_timeout=5).ping()
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)


@every_kind
def test_ensure_starts_a_killed_server_again_with_its_data(place: Place) -> None:
    """The first user starts a new server with the data of the killed one. The other user joins the server."""
    users = [place.user(), place.user()]
    place.client(users[0]).set("page", "1")
    users[1].acquire()
    killed = users[0].pid
    kill(killed)
    for user in users:
        path = user.ensure()
        assert redis.Redis(unix_socket_path=str(path)).get("page") == b"1"
    assert users[0].pid == users[1].pid
    assert users[0].pid != killed
    users[0].release()
    assert place.client(users[1]).ping()


def test_a_server_that_dies_while_it_loads_is_started_again_by_a_process_that_joined(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that joined starts the server again. It does not mistake the end for a broken AOF."""
    caplog.set_level(logging.INFO)
    place.fill(15_000)
    place.load_slowly(10)
    starter, joiner = place.user(), place.user()
    with ThreadPoolExecutor() as pool:
        started = pool.submit(starter.acquire)
        wait_until(lambda: place.log().count("Server initialized") == 2, "the server begins to load")
        joined = pool.submit(joiner.acquire)
        wait_until(
            lambda: caplog.text.count("loading the stored crawls") == 2, "both processes wait for the server"
        )
        kill(int((place.directory / "redis.pid").read_text()))
        joined.result(20)
        # The starter may have reported the end before the joiner has started the server again.
        assert started.exception(20) is None or "ended as it" in str(started.exception())
    assert place.client(joiner).dbsize() == 15_000


@every_kind
def test_an_interrupted_acquire_leaves_no_server_running(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After Ctrl-C during acquire(), no user is registered, so the new server is stopped."""
    caplog.set_level(logging.INFO)
    user = place.user()

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(user, "_await_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        user.acquire()
    monkeypatch.undo()
    with pytest.raises(EmbeddedError, match=r"acquire\(\)"):
        user.ensure()
    assert not RedisDirectory(place.directory).server_lives()
    assert "stopped" in caplog.text


@every_kind
def test_a_server_with_a_stuck_script_can_be_joined_and_stopped(place: Place) -> None:
    """A Redis that answers BUSY is alive, so users join it, and the last user can stop it."""
    first, second = place.user(), place.user()
    client = place.client(first)
    client.config_set("lua-time-limit", 20)
    with ThreadPoolExecutor() as pool:
        endless = redis.Redis(unix_socket_path=str(first.acquire()), retry=Retry(NoBackoff(), 0))
        pid = first.pid
        running = pool.submit(endless.eval, "while true do end", 0)

        def is_busy() -> bool:
            try:
                return not client.ping()
            except redis.ResponseError as error:
                return "BUSY" in str(error)

        try:
            wait_until(is_busy, "the server answers BUSY")
            second.acquire()
            first.release()
            second.release()
            with pytest.raises(redis.ConnectionError):
                running.result(patience(10))
            wait_until(lambda: not lives(pid), "the server's end")
        finally:
            if lives(pid):
                kill(pid)  # otherwise the pool would wait for the endless script


@every_kind
def test_acquire_replaces_a_killed_server(place: Place) -> None:
    """The killed server's socket and pid file do no harm, even if another process has the same pid."""
    place.client(place.user()).set("page", "1")
    (left,) = place._users
    kill(left.pid)
    assert (place.directory / "redis.sock").exists()
    bystander = place.process(place.home / "never")
    (place.directory / "redis.pid").write_text(f"{bystander._process.pid}\n")
    user = place.user()
    assert redis.Redis(unix_socket_path=str(user.acquire())).get("page") == b"1"
    assert bystander._process.poll() is None


@every_kind
def test_a_server_that_does_not_answer_is_not_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second server would ruin the AOF, because a suspended or unreachable server may write again."""
    monkeypatch.setattr(embedded, "REPLY_TIMEOUT_S", 0.1)
    first, second = place.user(), place.user(start_timeout_s=0.2)
    path = first.acquire()
    begin = Stopwatch()
    with suspended(first.pid), pytest.raises(EmbeddedError, match=r"lives, but gave no answer for 0\.2 s"):
        second.acquire()
    path.rename(place.home / "away")
    with pytest.raises(EmbeddedError, match="lives, but gave no answer"):
        second.acquire()
    assert begin.seconds < 3, "the client must not repeat failed commands"
    (place.home / "away").rename(path)
    second.acquire()
    assert second.pid == first.pid


def test_a_server_that_does_not_stop_is_left_running_and_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A suspended server reads no command, so it is left to the next process, and a warning names its pid."""
    monkeypatch.setattr(embedded, "REPLY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.3)
    user = place.acquired()
    with suspended(user.pid):
        user.release()
        assert lives(user.pid)
    assert f"pid {user.pid}, in {place.directory}, does not stop (Timeout" in caplog.text
