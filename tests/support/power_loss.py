"""A redis-server on a machine that loses power: data without an fsync is gone."""

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
    """A Redis with an AOF, everysec, that records its fsyncs and blocks them while the gate is shut."""

    def __init__(self, start_redis: Callable[..., RedisServer], kind: Kind, folder: Path) -> None:
        """Skip the test if this machine cannot preload a library into a server."""
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
        """Let no fsync end until the gate opens."""
        self._gate.touch()

    def open_gate(self) -> None:
        self._gate.unlink()

    def info(self) -> dict[str, Any]:
        with self.server.client() as client:
            return dict(client.info())

    def lose_power(self) -> None:
        """End the server, truncate each file to the data that is certainly on disk, and start it."""
        self.server.kill()
        synced: dict[int, int] = {}
        for line in self._notes.read_text().splitlines():
            inode, size = map(int, line.split())
            synced[inode] = max(size, synced.get(inode, 0))
        for path in _files(self.server.folder):
            os.truncate(path, min(path.stat().st_size, synced.get(path.stat().st_ino, 0)))
        self.roll_back(self.server.snapshot())

    def roll_back(self, snapshot: Path) -> None:
        """See `RedisServer.roll_back`; the snapshot's data is on the disk."""
        self.server.kill()
        self._gate.unlink(missing_ok=True)
        self._notes.unlink()  # other files may get the inodes of these files
        self.server.roll_back(snapshot)
        with self._notes.open("a") as notes:
            for path in _files(snapshot):
                inode = (self.server.folder / path.relative_to(snapshot)).stat().st_ino
                notes.write(f"{inode} {path.stat().st_size}\n")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
