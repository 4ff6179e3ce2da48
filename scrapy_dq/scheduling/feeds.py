"""Scrapy's feeds in a worker: which lose items if it is killed; none in a worker outside the run."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_dq.text import without_login

logger = logging.getLogger(__name__)


def warn_of_parts(crawler: Crawler) -> None:
    """Warn if *crawler*, whose feeds are open, writes a feed beside which a crew has left parts.

    A worker of a crew writes a part of its own, beside which there are none.
    """
    for exporter in crawler.extensions.middlewares:
        for slot in exporter.slots if isinstance(exporter, FeedExporter) else ():
            if not isinstance(slot.storage, FileFeedStorage):
                continue
            path = os.path.realpath(slot.storage.path)
            if any(Path(f"{path}.parts").glob("*.part")):
                logger.warning(
                    "%s.parts holds items of a `scrapy dq crawl` that was killed, or still runs. This crawl "
                    "does not add them to %s. To join them, stop this crawl, and go on with `scrapy dq crawl "
                    "%s` and the same feed (with -o, it keeps what the file holds)",
                    path, path, crawler.spider.name if crawler.spider else "",
                )  # fmt: skip


def open_none(crawler: Crawler) -> None:
    """Make *crawler* open no feeds: it takes no part in the run, and scrapes nothing.

    With any storage, it would overwrite what the workers of the run have scraped with an empty feed.
    """
    for extension in crawler.extensions.middlewares:
        if isinstance(extension, FeedExporter):
            extension.feeds = {}  # Source: scrapy/extensions/feedexport.py::FeedExporter.open_spider


def kept_in_process(settings: BaseSettings) -> list[str]:
    """Return the URIs, without passwords, of those FEEDS that may write items only when the worker closes.

    A kill loses these items, although their requests are acked. A storage class that writes items at once
    has a function `writes_at_once`, which takes the class of the exporter.
    """
    storages = settings.getwithbase("FEED_STORAGES")
    exporters = settings.getwithbase("FEED_EXPORTERS")
    found = []
    for uri, options in settings.getdict("FEEDS").items():
        try:
            scheme = urlsplit(str(uri)).scheme
        except ValueError:  # its password is not escaped
            scheme = str(uri).partition(":")[0]
        scheme = scheme if len(scheme) > 1 else ""  # one letter is a Windows drive
        storage = storages.get("stdout" if str(uri) == "-" else scheme)
        exporter = exporters.get(options.get("format"))
        with suppress(ImportError, NameError, ValueError):  # Scrapy reports it
            storage = load_object(storage) if isinstance(storage, str) else storage
            exporter = load_object(exporter) if isinstance(exporter, str) else exporter
        at_once = hasattr(storage, "writes_at_once") and storage.writes_at_once(exporter)
        batches = options.get("batch_item_count", settings.getint("FEED_EXPORT_BATCH_ITEM_COUNT"))
        if not at_once or options.get("postprocessing") or batches:
            found.append(without_login(str(uri)).partition("?")[0])
    return found
