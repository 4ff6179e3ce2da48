"""A feed storage for local files that loses no items on kill -9.

The operating system gets each write immediately. A second later, the data is on the disk, safe from power
loss.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run
from scrapy_dq.crew.feeds.whole import Whole
from scrapy_dq.crew.own_files import open_own, real_path
from scrapy_dq.environment import data_dir
from scrapy_dq.refusal import refuse
from scrapy_dq.signals import crawl_joined
from scrapy_dq.stats import names as stats

logger = logging.getLogger(__name__)


_runs: WeakKeyDictionary[Crawler, tuple[str, Run, bool]] = WeakKeyDictionary()
"""The runs that crawlers have joined. Scrapy also creates storages before a crawler joins, to test them."""


def run_begins(sender: Crawler, crawl: str, epoch: str, run: int, new: bool) -> None:
    """Remember the run that *sender* has joined, so that a feed with `overwrite` is emptied once in the run.

    The first worker that opens such a local feed empties it. Later workers append to it, because its items
    belong to acked requests and will not be scraped again.

    Args:
        new: no worker has scraped anything in the run yet.
    """
    _runs[sender] = crawl, Run(epoch, run), new


def _is_of_all(path: str, crawler: Crawler, feed_options: Any) -> bool:
    """Return whether the run of this file has to be recorded even without `overwrite`.

    It has to be if other workers may continue the file, and not if the file belongs to one worker. The files
    of a feed that is split into batches are not recorded either, because there may be many.
    """
    own = getattr(crawler.spider, "dq_worker", None)
    return not (feed_options or {}).get("batch_item_count") and not (own and str(own) in path)


class UnbufferedFileFeedStorage(FileFeedStorage):
    """Scrapy's local feed storage, except that it writes each item to the file as soon as it is exported.

    Scrapy's own storage buffers items in the process. A kill -9 loses them, although their requests are
    acked. Give each worker its own file with `%(dq_worker)s`, or use `scrapy dq crawl`.
    """

    _form = ""
    _crawler: Crawler | None = None

    @classmethod
    def from_crawler(
        cls, crawler: Crawler, uri: str, *, feed_options: dict[str, Any] | None = None
    ) -> UnbufferedFileFeedStorage:
        """Scrapy's hook. Source: scrapy/utils/misc.py::build_from_crawler

        Raises:
            CrewError: the feed's file is a link of another user. The crawl does not start.
        """
        storage = cls(uri, feed_options=feed_options)
        storage._crawler = crawler
        storage._form = str((feed_options or {}).get("format", ""))
        # Scrapy also creates a storage before the crawl, to test it. A second connect() changes nothing.
        crawler.signals.connect(run_begins, crawl_joined)
        try:
            real_path(Path(storage.path))
        except CrewError as error:
            if crawler.crawling:  # the parent of a crew, which crawls nothing, reports this error itself
                refuse(logger, crawler, "A feed cannot be written", error)
            raise
        if crawler in _runs and (
            storage.write_mode == "wb" or _is_of_all(storage.path, crawler, feed_options)
        ):
            storage._begin(*_runs[crawler])
        return storage

    @staticmethod
    def writes_at_once(exporter: Any) -> bool:
        """Return whether an item is in the file as soon as *exporter*, a class, has exported the item."""
        # A project's own exporter may keep all items until its end, for example for spreadsheets.
        export = getattr(exporter, "export_item", None)
        return getattr(export, "__module__", None) == "scrapy.exporters"

    def _begin(self, crawl: str, run: Run, new: bool) -> None:
        """Record that the file may have items of *run*. With `overwrite`, empty it, unless it may have some.

        This cannot wait until this worker has its first item. Until then, other workers may have written
        items. And if this worker were killed before its first item, the next worker might take the items of
        an older run for items of this run. A file without `overwrite` is also recorded. Otherwise, a later
        worker or crew with `overwrite` would treat the items of this run as an older run's, and remove them.
        """
        assert self._crawler is not None
        path = Path(self.path)
        if path.exists() and not path.is_file():  # a pipe, a terminal
            return
        overwrite, self.write_mode = self.write_mode == "wb", "ab"
        held = known = False
        with ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)  # as Scrapy does
                home = data_dir(self._crawler.settings.get("DQ_DATA_DIR"))
                # Record before emptying: after a crash in between, the next worker must not empty the file.
                noting = ItemsFolder(home, crawl).beginning(run, real_path(path))
                held, known = stack.enter_context(noting)
            except (OSError, CrewError) as error:
                if overwrite:
                    logger.warning(
                        "The run that %s holds is not recorded: %s. DQ_DATA_DIR names another folder for "
                        "records",
                        path, error,
                    )  # fmt: skip
            if not overwrite:
                return
            if not held and (known or new):
                with suppress(FileNotFoundError), open(path, "r+b", opener=open_own) as file:
                    file.truncate()
            elif path.exists() and path.stat().st_size:
                logger.warning("Items are appended to %s: it may contain earlier items of this run", path)

    def open(self, spider: Spider) -> IO[bytes]:
        """Open the file for appending, without a buffer. Each write is complete or has no effect."""
        path = Path(self.path)
        real_path(path).parent.mkdir(parents=True, exist_ok=True)
        if self.write_mode == "wb":
            open(path, "wb", opener=open_own).close()
        unbuffered: Any = Whole(path, "ab", opener=open_own)
        unbuffered.failed = self._write_failed
        if self._form in ("json", "csv", "xml") and path.is_file() and path.stat().st_size:
            logger.warning(
                "Items are appended to %s: it is not empty. Appended %s has a second beginning in its "
                "middle: jsonlines has none, and `scrapy dq crawl -O` writes a complete file",
                path, self._form,
            )  # fmt: skip
        return unbuffered  # type: ignore[no-any-return]

    def _write_failed(self) -> None:
        """Count a failed write. Scrapy drops the item; its request counts as done, and is not repeated."""
        if self._crawler is not None and self._crawler.stats is not None:
            self._crawler.stats.inc_value(stats.FEED_WRITES_FAILED)


def use_storage(exporter: FeedExporter, cls: type[FileFeedStorage]) -> None:
    """Make an unopened exporter write local files with *cls*. A project's own storage stays."""
    for scheme, storage in exporter.storages.items():
        if storage in (FileFeedStorage, UnbufferedFileFeedStorage):
            exporter.storages[scheme] = cls
