"""Decides which feeds of a crawl a crew exports at the end, and which each worker writes itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage
from scrapy_dq.crew.own_files import real_path
from scrapy_dq.text import without_login

# A % that does not begin a placeholder. Newer versions of Scrapy take such a % literally; 2.13 does not.
_PLACEHOLDER = re.compile(r"%(?!\([^)]+\)[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[diouxXeEfFgGcrsa])")


@dataclass(frozen=True)
class Feed:
    """A feed that is exported from the journals of all workers."""

    uri: str
    """The URI, as in FEEDS."""
    name: str
    """For people: a path, or a URI without its login."""
    is_local: bool
    """The feed is one file on this host, which can be replaced at any time."""
    overwrite: bool
    one_end: bool
    """The format of the file has an end, such as `]`, so nothing can be appended."""


def plan_feeds(crawler: Crawler, began: datetime) -> list[Feed]:
    """Return the feeds to export. A feed with one file per worker is left out.

    Args:
        began: the value of `%(time)s` in the names of feeds.
    Raises:
        CrewError: a feed cannot be written.
    """
    if not (crawler.settings["FEEDS"] or crawler.settings["FEED_URI"]):
        return []
    try:
        exporter = FeedExporter(crawler)
    except NotConfigured:
        raise CrewError("a feed cannot be written: see Scrapy's message above") from None
    except CrewError:
        raise
    except Exception as error:
        raise CrewError(
            f"a feed cannot be written: {type(error).__name__}: {without_login(str(error))}"
        ) from error
    feeds = []
    targets: set[Path] = set()
    freeze(began, 0)  # with different times, a shared feed would look like one file per worker
    for uri, options in exporter.feeds.items():
        one, other = (_resolved(exporter, uri, options, worker) for worker in ("a", "b"))
        scheme = urlsplit(uri).scheme
        if scheme == "stdout":
            raise CrewError(f"feed {uri!r}: standard output has the summary. Write it to a file")
        if one != other:
            continue
        storage = exporter.storages.get(scheme, exporter.storages.get("file"))
        is_file = storage in (FileFeedStorage, UnbufferedFileFeedStorage)
        is_local = is_file and not options.get("batch_item_count")
        name = without_login(one).partition("?")[0]
        if is_local:
            target = Path(FileFeedStorage(one).path).absolute()
            if target in targets:
                raise CrewError(f"two feeds are written to {target}")
            targets.add(target)
            _check(target, uri)
            name = str(target)
        one_end = is_local and options["format"] in ("json", "xml")
        feeds.append(Feed(uri, name, is_local, bool(options.get("overwrite")), one_end))
    return feeds


def _check(target: Path, uri: str) -> None:
    """Raise CrewError if *target* could not be replaced at the end of the crawl."""
    real = real_path(target)  # refuses another user's link before any call below could follow it
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=real.parent):
            pass
    except OSError as error:
        raise CrewError(f"feed {without_login(uri)!r}: {real.parent} cannot be written: {error}") from error
    if real.exists() and not real.is_file():
        raise CrewError(f"feed {without_login(uri)!r}: it is not a regular file")


def freeze(began: datetime, step_us: int) -> None:
    """Set the clock of Scrapy's exporter in this process to *began*; each reading adds *step_us* µs."""
    moments = (began + timedelta(microseconds=step_us * n) for n in count())
    # Source: scrapy/extensions/feedexport.py::FeedExporter._get_uri_params
    feedexport.datetime = SimpleNamespace(now=lambda tz: next(moments))  # type: ignore


def _resolved(exporter: FeedExporter, uri: str, options: Mapping[str, Any], worker: str) -> str:
    """Return the URI to which *worker* would write. Source: scrapy/extensions/feedexport.py"""
    spider: Any = exporter.crawler.spider
    before = getattr(spider, "dq_worker", None)
    spider.dq_worker = worker
    try:
        return _PLACEHOLDER.sub("%%", uri) % exporter._get_uri_params(spider, options.get("uri_params"))
    except Exception as error:
        raise CrewError(f"feed {without_login(uri)!r}: {type(error).__name__}: {error}") from error
    finally:
        spider.dq_worker = before
