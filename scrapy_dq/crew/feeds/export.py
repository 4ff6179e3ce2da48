"""A process that exports one feed: it gives the items of the journals to Scrapy's own FeedExporter.

`exporting.py` starts the process as another `scrapy dq crawl`, with the same spider, arguments and settings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exporters import CsvItemExporter
from scrapy.extension import ExtensionManager
from scrapy.extensions.feedexport import FeedExporter, FeedSlot
from scrapy.statscollectors import StatsCollector
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.task import react

from scrapy_dq.crew import pipes
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import ItemsFolder
from scrapy_dq.crew.feeds.journal import Work, exported, not_exported
from scrapy_dq.crew.feeds.plan import freeze
from scrapy_dq.crew.feeds.replacing import ReplacingFileStorage
from scrapy_dq.crew.feeds.storage import use_storage
from scrapy_dq.crew.worker_agent import Relay
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, config_of

logger = logging.getLogger(__name__)
VARIABLE = "SCRAPY_DQ_EXPORT"
MAX_PENDING = 8
"""Maximum number of batches that are being stored at the same time."""
TURN = 100
"""Number of items after which the event loop may store batches."""
MIB = 1 << 20


def taken_work() -> tuple[int, Work] | None:
    """Return the pipe for reports and the work if this process was started to export a feed, else None."""
    reports = os.environ.pop(VARIABLE, "")
    return (int(reports), Work(*json.load(sys.stdin))) if reports else None


def export(crawler: Crawler, reports: int, work: Work) -> None:
    """Export a feed. The last report contains the result; without this report, the export has failed."""
    logging.getLogger().addHandler(Relay(reports))

    async def run() -> None:
        task: Any = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await _Export(crawler, reports, work).run()
        except CrewError as error:
            pipes.send(reports, {"error": str(error)})
        except Exception:
            logger.exception("The export of a feed has failed")
        finally:
            if ReplacingFileStorage.building is not None:
                ReplacingFileStorage.building.unlink(missing_ok=True)  # otherwise a full disk would stay full

    react(lambda _: deferred_from_coro(run()))


class _Export:
    def __init__(self, crawler: Crawler, reports: int, work: Work) -> None:
        self._crawler = crawler
        self._reports = reports
        self._work = work
        self._end: dict[str, Any] = {"name": "", "items": 0, "appends": False}
        self._read = 0
        self._journals = [Path(path) for path in work.journals]
        self._dropped = not_exported(self._journals, self._passed)

    def _passed(self, size: int) -> None:
        """Report the MiB read. Items count twice: when attempts are compared, and during the export."""
        before, self._read = self._read, self._read + size
        if self._read // MIB > before // MIB:
            pipes.send(self._reports, {"done": self._read // MIB})

    async def run(self) -> None:
        exporter, spider = self._exporter(), self._crawler.spider
        assert spider is not None
        exporter.open_spider(spider)
        for done, (item, size) in enumerate(self._items(), 1):
            exporter.item_scraped(item, spider)
            self._passed(size)
            if not done % TURN:
                await _stored(exporter)
        await exporter.close_spider(spider)
        (slot,) = exporter.slots
        is_empty = not slot.itemcount and not (slot.store_empty and slot.batch_id == 1)
        # If an exporter raises at its end, Scrapy counts its feed neither as stored nor as failed.
        counts: Any = self._crawler.stats.get_stats()
        stored = sum(n for name, n in counts.items() if name.startswith("feedexport/success_count/"))
        if stored == slot.batch_id - is_empty:
            pipes.send(self._reports, {"end": self._end})

    def _exporter(self) -> FeedExporter:
        """Return the project's exporter, with one feed.

        All extensions are loaded, because some of them may handle the exporter's signals.
        """
        crawler, uri = self._crawler, self._work.uri
        freeze(datetime.fromisoformat(self._work.began), 1)  # batches need different times in their names
        crawler.stats = StatsCollector(crawler)
        crawler.extensions = ExtensionManager.from_crawler(crawler)
        exporter = crawler.get_extension(FeedExporter)
        assert exporter is not None
        use_storage(exporter, ReplacingFileStorage)
        config = config_of(crawler)
        ReplacingFileStorage.work = self._work
        ReplacingFileStorage.folder = ItemsFolder(data_dir(config.data_dir).absolute(), config.crawl)
        options = exporter.feeds[uri]
        exporter.feeds = {uri: options}
        if (
            options["format"] == "csv"
            and not options["fields"]
            and exporter.exporters["csv"] is CsvItemExporter
        ):
            # Scrapy alone would drop columns that the first item lacks.
            found = (
                ItemAdapter(each).field_names()
                for each, _ in self._items()
                if exporter.filters[uri].accepts(each)
            )
            ReplacingFileStorage.columns = list(dict.fromkeys(chain.from_iterable(found)))
            # The filter was used above, and may have changed its state, so a new filter replaces it.
            exporter.filters[uri] = type(exporter.filters[uri])(options)
        crawler.signals.connect(self._closed, signals.feed_slot_closed)
        return exporter

    def _items(self) -> Iterator[tuple[Any, int]]:
        codec = codec_of(config_of(self._crawler), self._crawler)
        found = exported(self._journals, self._dropped)
        return ((record.item(codec), len(record.data)) for _, record in found)

    def _closed(self, slot: FeedSlot) -> None:
        self._end["items"] += slot.itemcount
        if isinstance(slot.storage, ReplacingFileStorage):
            self._end |= {"name": os.path.abspath(slot.storage.path), "appends": slot.storage.appends}


async def _stored(exporter: FeedExporter) -> None:
    """Let the event loop store batches. Source: scrapy/extensions/feedexport.py::FeedExporter.close_spider"""
    coroutines = getattr(exporter, "_pending_close_coros", [])  # Scrapy 2.14 to 2.17 only collects them
    while coroutines:
        await coroutines.pop(0)
    tasks = getattr(exporter, "_pending_close_tasks", ())
    if len(tasks) > MAX_PENDING:
        await asyncio.wait(list(tasks))
    await asyncio.sleep(0)
