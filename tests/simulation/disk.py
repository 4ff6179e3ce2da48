"""The disk on which workers store moves that wait for Redis."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

from simulation.virtual import World

PLENTY = 1 << 40


class Disk:
    """A real folder for all workers of a schedule, with simulated free space."""

    def __init__(self, world: World, *, used: bool) -> None:
        self._world = world
        self.folder = tempfile.mkdtemp(prefix="dq-simulation-") if used else ""
        self.full_until = 0.0
        shutil.disk_usage = self._usage  # type: ignore[assignment]

    def lose(self) -> None:
        """Truncate all files."""
        if self.folder:
            for path in Path(self.folder).rglob("moves*/q*"):
                path.write_bytes(b"")

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _usage(self, path: object) -> SimpleNamespace:
        return SimpleNamespace(free=0 if self._world.now < self.full_until else PLENTY)
