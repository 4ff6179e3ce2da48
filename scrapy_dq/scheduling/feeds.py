"""Scrapy's feeds in a worker: which lose items when it is killed, and none for who takes no part in a run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.misc import load_object

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


def open_none(crawler: Crawler) -> None:
    """Have *crawler* leave its feeds as they are: it takes no part in its run, and scrapes nothing.

    Of whatever storage: it would put an empty feed in the place of what those that did have scraped.
    """
    for extension in crawler.extensions.middlewares:
        if isinstance(extension, FeedExporter):
            extension.feeds = {}  # Source: scrapy/extensions/feedexport.py::FeedExporter.open_spider


def kept_in_process(settings: BaseSettings) -> list[str]:
    """Return those of FEEDS whose items may be in no file before the worker closes, without any password.

    A kill takes them, while their requests are acknowledged. A storage class that keeps none says so with a
    function `writes_at_once`, which takes the class of the exporter.
    """
    storages = settings.getwithbase("FEED_STORAGES")
    exporters = settings.getwithbase("FEED_EXPORTERS")
    found = []
    for uri, options in settings.getdict("FEEDS").items():
        parts = urlsplit(str(uri))
        scheme = parts.scheme if len(parts.scheme) > 1 else ""  # that is a drive of Windows
        storage = storages.get("stdout" if str(uri) == "-" else scheme)
        exporter = exporters.get(options.get("format"))
        with suppress(ImportError, NameError, ValueError):  # Scrapy says what is wrong with it
            storage = load_object(storage) if isinstance(storage, str) else storage
            exporter = load_object(exporter) if isinstance(exporter, str) else exporter
        at_once = hasattr(storage, "writes_at_once") and storage.writes_at_once(exporter)
        batches = options.get("batch_item_count", settings.getint("FEED_EXPORT_BATCH_ITEM_COUNT"))
        if not at_once or options.get("postprocessing") or batches:
            found.append(f"{scheme}://{parts.hostname}{parts.path}" if parts.hostname else str(uri))
    return found
