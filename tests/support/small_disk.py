"""A file system of a few megabytes that a test can fill."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.waiting import wait_until

FILLER = "filler"


class SmallDisk:
    """A tmpfs mounted at *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Write until the disk is full."""
        with suppress(OSError), (self.folder / FILLER).open("wb", buffering=0) as filler:
            while filler.write(b"\0" * 4096):
                pass

    def free(self) -> None:
        """Undo `fill`."""
        (self.folder / FILLER).unlink()


@contextmanager
def small_disk(folder: Path, size: str = "8m") -> Iterator[SmallDisk]:
    """Mount a tmpfs of *size* at *folder* for its owner only. At the end, kill its Redis and unmount it.

    Raises:
        PermissionError: this process may not mount.
    """
    folder.mkdir(mode=0o700, parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError as error:
        raise PermissionError("there is no mount command") from error
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield SmallDisk(folder)
    finally:
        # If the workers were killed, their Redis server may still run in the folder. Then the folder could
        # not be unmounted.
        with suppress(OSError, ValueError):
            pid = int((folder / "redis.pid").read_text())
            if os.path.realpath(f"/proc/{pid}/cwd") == str(folder.resolve()):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _unmounted(folder), f"{folder} can be unmounted")


def _unmounted(folder: Path) -> bool:
    command = ["umount", str(folder)]
    return not subprocess.run(command, capture_output=True, timeout=120, check=False).returncode
