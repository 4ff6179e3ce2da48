"""Scrapy's feeds in a worker: finds feeds that a kill can damage, and opens no feeds outside a run."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import quote

from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter

from scrapy_dq.environment import data_dir
from scrapy_dq.settings import Config
from scrapy_dq.text import without_login

logger = logging.getLogger(__name__)


OPEN, DONE = ".journal", ".exported"
"""Suffixes of journals, the files with the items of a crew's workers. The feeds may lack items of a
`.journal` file, but contain all items of an `.exported` file."""


def items_folder(home: Path, crawl: str) -> Path:
    """Return the folder for the items of a crawl in the data directory."""
    return home / "items" / (quote(crawl, safe="") if crawl.strip(".") else "crawl")


def warn_of_journals(crawler: Crawler, config: Config) -> None:
    """Warn if a crew has left items of this crawl in journals, and *crawler* writes a shared feed.

    A feed with the worker's id in its URI is not shared. A worker of a crew has no shared feed.
    """
    folder = items_folder(data_dir(config.data_dir), config.crawl)
    exporter, own = crawler.get_extension(FeedExporter), str(getattr(crawler.spider, "dq_worker", ""))
    shares_feeds = exporter is not None and any(own not in slot.uri for slot in exporter.slots)
    if shares_feeds and any(folder.glob(f"*{OPEN}")):
        logger.warning(
            "%s holds items of a `scrapy dq crawl` that was killed or still runs. This crawl does not write "
            "them to its feeds. To export them, run `scrapy dq items %s -o FILE`",
            folder, config.crawl,
        )  # fmt: skip


def open_none(crawler: Crawler) -> None:
    """Make *crawler* open no feeds, because it takes no part in the run and scrapes no items.

    Unless a feed's storage appends, an empty feed would overwrite the items of the run's workers.
    """
    for extension in crawler.extensions.middlewares:
        if isinstance(extension, FeedExporter):
            extension.feeds = {}  # Source: scrapy/extensions/feedexport.py::FeedExporter.open_spider


def kept_in_process(exporter: FeedExporter) -> list[str]:
    """Return the URIs, without logins and queries, of open feeds that do not write each item at once.

    If the worker is killed, unwritten items are lost, although their requests are acked. A storage class that
    can write items at once has a function `writes_at_once`. It takes the class of an exporter, and returns
    whether the storage writes each item of this exporter at once.
    """
    found = []
    for slot in exporter.slots:
        at_once = getattr(slot.storage, "writes_at_once", None)
        options = slot.feed_options
        if (
            options.get("postprocessing")
            or options["batch_item_count"]
            or not (at_once and at_once(exporter.exporters[slot.format]))
        ):
            found.append(without_login(slot.uri_template).partition("?")[0])
    return found
