"""Show the exported feeds as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scrapy_dq.commands.output.display import short
from scrapy_dq.crew.feeds.exporting import Exported
from scrapy_dq.text import count_of


def feeds_as_json(feeds: Iterable[Exported]) -> list[dict[str, Any]]:
    """Return an object for each feed, for --json."""
    return [{"path": feed.name, "items": feed.items, "appended": feed.appended} for feed in feeds]


def feed_lines(feeds: Iterable[Exported]) -> Iterator[str]:
    """Yield a line for each feed."""
    for feed in feeds:
        name = short(Path(feed.name)) if os.path.isabs(feed.name) else feed.name
        yield f"{name}: {count_of(feed.items, 'item')}{' appended' if feed.appended else ''}"
