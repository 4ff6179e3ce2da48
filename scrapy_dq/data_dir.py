"""Where the embedded Redis of a project keeps its files."""

from __future__ import annotations

from pathlib import Path

from scrapy.utils.project import data_path


def data_dir() -> Path:
    """Return the folder of the embedded Redis, in Scrapy's data directory."""
    try:
        return Path(data_path("dq"))
    except FileExistsError:
        # Scrapy makes .scrapy without expecting that a worker beside us makes it at the same moment.
        return Path(data_path("dq"))
