"""A redis-server on a simulated machine that loses power. Data that no fsync has written is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.redis_server import Kind, RedisServer

SOURCE = Path(__file__).with_suffix(".c")


class PoweredRedis:
    """A Redis with an AOF (`appendfsync everysec`). Its fsyncs are recorded. A shut gate holds them up."""

    def __init__(self, start_redis: Callable[..., RedisServer], kind: Kind, folder: Path) -> None:
        """Start the server. Skip the test if this machine cannot preload a library into it."""
        compiler = shutil.which("cc")
        if compiler is None or not sys.platform.startswith("linux"):
            pytest.skip("needs Linux and a C compiler")
        library = folder / "power_loss.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        self._gate, self._notes = folder / "gate", folder / "notes"
        env = {"LD_PRELOAD": library, "SYNC_GATE": self._gate, "SYNC_NOTES": self._notes}
        self.server = start_redis(kind, appendonly=True, env={name: str(env[name]) for name in env})

    @property
    def url(self) -> str:
        return self.server.url

    def shut_gate(self) -> None:
        """Let no fsync end until `open_gate`."""
        self._gate.touch()

    def open_gate(self) -> None:
        self._gate.unlink()

    def info(self) -> dict[str, Any]:
        with self.server.client() as client:
            return dict(client.info())

    def lose_power(self) -> None:
        """Kill the server, truncate each file to the size at its last fsync, and start the server."""
        self.server.kill()
        synced: dict[int, int] = {}
        for line in self._notes.read_text().splitlines():
            inode, size = map(int, line.split())
            synced[inode] = max(size, synced.get(inode, 0))
        for path in _files(self.server.folder):
            os.truncate(path, min(path.stat().st_size, synced.get(path.stat().st_ino, 0)))
        self.roll_back(self.server.snapshot())

    def roll_back(self, snapshot: Path) -> None:
        """Do the same as `RedisServer.roll_back`. The data of *snapshot* counts as written to the disk."""
        self.server.kill()
        self._gate.unlink(missing_ok=True)
        self._notes.unlink()  # the notes name files by inode, and new files may get the same inodes
        self.server.roll_back(snapshot)
        with self._notes.open("a") as notes:
            for path in _files(snapshot):
                inode = (self.server.folder / path.relative_to(snapshot)).stat().st_ino
                notes.write(f"{inode} {path.stat().st_size}\n")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
