"""A run of a crawl, and small files about it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.filesystem import sync_folder


class Run(NamedTuple):
    """One life of a crawl."""

    epoch: str
    number: int


def read_json(path: Path) -> Any:
    """Return what a small file holds; None if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text())
    return None


def write_json(path: Path, value: Any) -> None:
    """Replace a small file; a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    # O_EXCL: never through a link that another user has put there.
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)
