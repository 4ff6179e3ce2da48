"""Decides which feeds of a crawl are joined from parts, and which its workers cannot share."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import exporters
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.formats import unjoinable, unreadable
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage
from scrapy_dq.crew.own_files import real_path
from scrapy_dq.text import without_login

_STORAGE = "scrapy_dq.crew.feeds.storage.UnbufferedFileFeedStorage"
_CSV = "scrapy_dq.crew.feeds.csv_format.PartCsvItemExporter"
_EXPORTERS = (exporters.JsonLinesItemExporter, exporters.CsvItemExporter, exporters.JsonItemExporter)
# Scrapy 2.13 does not have this pattern: it formats the whole URI.
_PLACEHOLDER = re.compile(r"%(?!\([^)]+\)[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[diouxXeEfFgGcrsa])")


@dataclass(frozen=True)
class JoinedFeed:
    """A local feed of which each worker writes its own part."""

    uri: str
    """As in FEEDS."""
    target: Path
    options: Mapping[str, Any]
    """As completed by Scrapy."""

    @property
    def format(self) -> str:
        return str(self.options["format"])

    @property
    def overwrite(self) -> bool:
        return bool(self.options.get("overwrite"))


def plan_feeds(crawler: Crawler) -> list[JoinedFeed]:
    """Return the feeds that are joined, without those of which each worker has its own file.

    Raises:
        CrewError: several workers cannot write one of them.
    """
    if not (crawler.settings["FEEDS"] or crawler.settings["FEED_URI"]):
        return []
    try:
        exporter = FeedExporter(crawler)
    except NotConfigured:
        raise CrewError("a feed cannot be written, as Scrapy says above") from None
    except CrewError:
        raise
    except Exception as error:
        raise CrewError(
            f"a feed cannot be written: {type(error).__name__}: {without_login(str(error))}"
        ) from error
    feeds = []
    now = datetime.now(tz=timezone.utc).replace(
        microsecond=0
    )  # once: different times would look like different workers
    for uri, options in exporter.feeds.items():
        one, other = (_resolved(crawler, uri, options, worker, now) for worker in ("a", "b"))
        scheme = urlsplit(uri).scheme
        if one == other or scheme == "stdout":
            why = _why_not(exporter, uri, scheme, options)
            if why:
                raise CrewError(_refusal(uri, why))
            feeds.append(JoinedFeed(uri, Path(UnbufferedFileFeedStorage(one).path).absolute(), options))
    for feed in feeds:
        if sum(other.target == feed.target for other in feeds) > 1:
            raise CrewError(f"two feeds are written to {feed.target}")
        real_path(feed.target)  # before anything follows the link
        if feed.target.exists() and not feed.target.is_file():
            raise CrewError(_refusal(feed.uri, "it is not a regular file"))
        if feed.target.exists() and _kept_by_its_folder(feed.target):
            raise CrewError(
                f"{feed.target} belongs to another user, and only they can replace it in its folder (sticky "
                f"bit): choose another file"
            )
        if feed.target.exists() and not feed.overwrite:
            try:
                why = unreadable(feed.target, feed.options)
            except OSError as error:
                why = str(error)
            if why:
                raise CrewError(f"nothing can be appended to {feed.target}: {why}. -O would replace it")
    return feeds


def _kept_by_its_folder(target: Path) -> bool:
    """Tell whether *target* cannot be replaced: it is another user's, in a folder such as /tmp."""
    real, user = Path(os.path.realpath(target)), os.geteuid()
    folder = real.parent.stat()
    return bool(folder.st_mode & stat.S_ISVTX) and user not in (0, folder.st_uid, real.stat().st_uid)


def storages(crawler: Crawler) -> dict[str, str | None]:
    """Return FEED_STORAGES for the workers: the project's, except for local files."""
    found = _classes(crawler, "FEED_STORAGES")
    for scheme in ("", "file"):
        given = found.get(scheme)
        if given is None or load_object(given) is FileFeedStorage:
            found[scheme] = _STORAGE
    return found


def exporter_classes(crawler: Crawler) -> dict[str, str | None]:
    """Return FEED_EXPORTERS for the workers: the project's, except for Scrapy's own CSV exporter."""
    found = _classes(crawler, "FEED_EXPORTERS")
    given = found.get("csv", "")
    if given == "" or (given and load_object(given) is exporters.CsvItemExporter):
        found["csv"] = _CSV
    return found


def _classes(crawler: Crawler, setting: str) -> dict[str, str | None]:
    return {
        name: each if each is None or isinstance(each, str) else global_object_name(each)
        for name, each in crawler.settings[setting].items()
    }


def _resolved(crawler: Crawler, uri: str, options: Mapping[str, Any], worker: str, now: datetime) -> str:
    """Return the URI as a worker would have it. Source: scrapy/extensions/feedexport.py"""
    spider = crawler.spider
    assert spider is not None
    before = getattr(spider, "dq_worker", None)
    spider.dq_worker = worker  # type: ignore[attr-defined]
    try:
        params = {name: getattr(spider, name) for name in dir(spider)}
        params |= {
            "time": now.replace(tzinfo=None).isoformat().replace(":", "-"),
            "batch_time": now.isoformat().replace(":", "-"),
            "batch_id": 1,
        }
        change = load_object(options["uri_params"]) if options.get("uri_params") else lambda params, _: params
        params = change(params, spider) or params
        return _PLACEHOLDER.sub("%%", uri) % params
    except Exception as error:
        raise CrewError(f"feed {without_login(uri)!r}: {type(error).__name__}: {error}") from error
    finally:
        spider.dq_worker = before  # type: ignore[attr-defined]


def _why_not(exporter: FeedExporter, uri: str, scheme: str, options: Mapping[str, Any]) -> str:
    return next(filter(None, _reasons(exporter, uri, scheme, options)), "")


def _reasons(exporter: FeedExporter, uri: str, scheme: str, options: Mapping[str, Any]) -> Iterator[str]:
    if scheme == "stdout":
        yield "the output of the workers would mix on standard output"
    storage = exporter.storages.get(scheme) or exporter.storages.get("file")
    if scheme not in ("", "file"):
        yield "each worker would overwrite it"
    elif storage not in (FileFeedStorage, UnbufferedFileFeedStorage):
        yield "FEED_STORAGES sets another class for it"
    if options.get("batch_item_count") or "%(batch_" in uri:
        yield "batches of several workers would overwrite each other"
    yield unjoinable(options)
    exporter_class = exporter.exporters.get(options["format"])
    if not (isinstance(exporter_class, type) and issubclass(exporter_class, _EXPORTERS)):
        yield "FEED_EXPORTERS sets another class for its format"


def _refusal(uri: str, why: str) -> str:
    way = "write it to a file" if uri.startswith("stdout:") else "put %(dq_worker)s into its name"
    return f"feed {without_login(uri)!r}: {why}. Either {way}, or crawl with `scrapy crawl` alone"
