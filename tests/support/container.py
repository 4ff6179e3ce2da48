"""Runs commands like `docker run --user UID --read-only`, without docker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.project import Project

USER = 10001
# This Python may be in root's home folder, so the user gets the right to read all files, but to write none.
_AS_USER = [
    "setpriv", "--clear-groups", "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
]  # fmt: skip
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind / && shift && exec "$@"'
"""Makes the disk read-only, except the volume and other mounted file systems."""


class Container:
    """A container for a project. Its user can write to only one folder of the disk.

    Attributes:
        volume: the folder that the user may write to.
    """

    def __init__(self, project: Project, volume: Path, words: list[str]) -> None:
        self.volume = volume
        self._project = project
        self._words = words

    def run(self, *words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `scrapy *words` in the project's folder. Assert that the output has no traceback."""
        done = subprocess.run(
            [*self._words, *self._project.command(*words)], cwd=self._project.folder,
            env=self._project.environ() | {"HOME": "/nonexistent"} | dict(environ or {}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done


@contextmanager
def contained(project: Project, volume: Path, *, read_only: bool, user: int = USER) -> Iterator[Container]:
    """Yield the container. Skip the test if this process may not make a container.

    Args:
        volume: a folder that this function creates for the user.
        read_only: whether to mount the whole disk read-only, including folders such as /tmp. Only root can do
            this. If False, only the modes of the project's folders prevent the user from writing there.
        user: the id of the container's user. Without root, the container runs as this process's user.
    """
    folders = [project.folder, *(path for path in project.folder.rglob("*") if path.is_dir())]
    volume.mkdir()
    words: list[str] = []
    if os.geteuid() == 0:
        os.chown(volume, user, user)
        words = [*_AS_USER, f"--reuid={user}", f"--regid={user}", "--"]
        if read_only:
            words = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(volume), *words]
    elif read_only:
        pytest.skip("only root can mount a disk read-only")
    if words:
        _need(words, volume)
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield Container(project, volume, words)
    finally:
        for folder in folders:
            folder.chmod(0o755)


def _need(words: list[str], volume: Path) -> None:
    """Skip the test if *words* cannot make a container here, for example because a CI system forbids it."""
    for program in {words[0], _AS_USER[0]}:
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    script = f"touch {volume}/here && rm {volume}/here && ! touch {volume.parent}/there 2> /dev/null"
    tried = subprocess.run([*words, "sh", "-c", script], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no container can be made here: {tried.stderr}")
