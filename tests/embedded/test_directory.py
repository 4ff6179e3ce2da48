"""The directory of an embedded Redis: its owner, its path, and its loss."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import psutil
import pytest
import redis

from scrapy_dq.embedded import EmbeddedError, EmbeddedRedis
from scrapy_dq.embedded.directory import RedisDirectory
from support.embedded_place import Place, every_kind, kill


@every_kind
def test_the_server_is_private_and_configured_to_lose_nothing(place: Place) -> None:
    """Files are private under any umask. The server has an AOF, and no TCP port, snapshots or eviction."""
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
    """Another user could have put a server behind the socket."""
    directory = tmp_path / "dq"
    directory.mkdir()
    directory.chmod(0o770)
    with pytest.raises(EmbeddedError, match=r"Other users may write into .*chmod 700"):
        EmbeddedRedis(directory).acquire()
    directory.chmod(0o755)
    RedisDirectory(directory).prepare()


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even root refuses a directory of another user, who could change the files in it."""
    directory = tmp_path / "dq"
    RedisDirectory(directory).prepare()
    monkeypatch.setattr(os, "getuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(EmbeddedError, match="its owner is uid"):
        RedisDirectory(directory).prepare()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reach a long socket path by a short one")
def test_a_socket_with_a_long_path_is_reached_by_a_short_one(place: Place) -> None:
    """The path of a socket has a small maximum length."""
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
    """A user of the deleted directory must not stop the new server, or start a second one beside it."""
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
    assert redis.Redis(unix_socket_path=str(path)).ping(), "old uses this server"
    old.release()
    assert not path.exists()


def test_a_directory_that_cannot_be_used_is_an_error_with_its_path(
    place: Place,
) -> None:
    """The error names the directory and the solutions. Here a file is in the place of the directory."""
    place.directory.parent.mkdir(parents=True)
    place.directory.touch()
    with pytest.raises(EmbeddedError, match=f"needs the folder {place.directory}: .*DQ_DATA_DIR.*REDIS_URL"):
        place.acquired()
