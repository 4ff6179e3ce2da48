"""A feed storage for local files that loses no items on kill -9, and that a crew's workers can share.

Data is passed to the operating system at once, and is on the disk, safe from power loss, a second later.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.csv_format import PartCsvItemExporter
from scrapy_dq.crew.feeds.parts import PartsFolder, mark_lost, part_path, write_lock
from scrapy_dq.crew.feeds.records import Run
from scrapy_dq.crew.own_files import open_own, real_path
from scrapy_dq.environment import data_dir
from scrapy_dq.refusal import refuse
from scrapy_dq.signals import crawl_joined
from scrapy_dq.stats import names as stats

logger = logging.getLogger(__name__)
SYNC_EVERY_S = 1.0
_EXPORT_AT_ONCE = ("scrapy.exporters", PartCsvItemExporter.__module__)


class _RunOfFeeds(NamedTuple):
    crawl: str
    run: Run
    new: bool


class _Parts(NamedTuple):
    folders: Mapping[str, str]
    run: Run
    worker: int


_runs: WeakKeyDictionary[Crawler, _RunOfFeeds] = WeakKeyDictionary()
"""Of crawlers that have joined a run. Scrapy also creates storages before that, to test them."""
_parts: _Parts | None = None
"""Of this process, once it has joined a run as a worker of a crew."""


def run_begins(crawler: Crawler, crawl: str, run: Run, *, new: bool) -> None:
    """Have each local feed with `overwrite` emptied once in a run: when the first worker opens it.

    Later workers append: what it holds was acknowledged and will not be scraped again.

    Args:
        new: no worker has scraped anything in it yet.
    """
    _runs[crawler] = _RunOfFeeds(crawl, run, new)


def write_parts(folders: Mapping[str, str], run: Run, worker: int) -> None:
    """Have this process write parts of feeds instead of the feeds: *folders* are by URI."""
    global _parts
    _parts = _Parts(folders, run, worker)


def _note_run(sender: Crawler, crawl: str, epoch: str, run: int, new: bool) -> None:
    run_begins(sender, crawl, Run(epoch, run), new=new)


def _part_of(crawler: Crawler, feed_options: Any) -> Path | None:
    """Return the path of this worker's part of a feed, or None if the feed is not joined.

    Args:
        feed_options: the same object that Scrapy's exporter has: it identifies the feed.
    """
    if _parts is None:
        return None
    exporter = None
    # When the exporter is created, it creates each storage once, to test it.
    with suppress(RuntimeError):
        exporter = crawler.get_extension(FeedExporter)
    for uri, options in exporter.feeds.items() if exporter else ():
        if options is feed_options and uri in _parts.folders:
            return part_path(Path(_parts.folders[uri]), *_parts.run, _parts.worker)
    return None


def _is_of_all(path: str, crawler: Crawler, feed_options: Any) -> bool:
    """Tell whether other workers may continue this file: it is neither a batch nor a worker's own.

    There may be many batches, and each would have a record.
    """
    own = getattr(crawler.spider, "dq_worker", None)
    return not (feed_options or {}).get("batch_item_count") and not (own and str(own) in path)


_WITH_BEGINNING = ("json", "csv", "xml")


class UnbufferedFileFeedStorage(FileFeedStorage):
    """Scrapy's local feed storage, but each item is written to the file as soon as it is exported.

    Scrapy's own keeps up to a buffer of items in the process, which a kill -9 loses, although their requests
    are acknowledged. Give each worker its own file with `%(dq_worker)s`. A worker of `scrapy dq crawl` writes
    its own part instead of a feed that is joined at the end.
    """

    _is_part = _is_warned = False
    _form = ""
    _crawler: Crawler | None = None

    @classmethod
    def from_crawler(
        cls, crawler: Crawler, uri: str, *, feed_options: dict[str, Any] | None = None
    ) -> UnbufferedFileFeedStorage:
        """Scrapy's hook. Source: scrapy/utils/misc.py::build_from_crawler

        Raises:
            CrewError: Scrapy tests it, and it is a link of another user: the crawl does not start.
            CloseSpider: the same, of a feed that the spider begins.
        """
        storage = cls(uri, feed_options=feed_options)
        storage._crawler = crawler
        storage._form = str((feed_options or {}).get("format", ""))
        crawler.signals.connect(_note_run, crawl_joined)  # when Scrapy tests it; repeating it changes nothing
        part = _part_of(crawler, feed_options)
        if part is not None:
            storage.path, storage.write_mode, storage._is_part = str(part), "ab", True
            # For the life of this process: it may write until its end, and its part is not removed before.
            write_lock(part.parent)
            return storage
        try:
            real_path(Path(storage.path))
        except CrewError as error:
            if crawler not in _runs:
                if crawler.crawling:  # the parent of a crew tries its feeds, too, and reports this itself
                    refuse(logger, crawler, "A feed cannot be written", error)
                raise
            logger.error("%s", error)
            raise CloseSpider("feed_refused") from error
        if crawler in _runs and (
            storage.write_mode == "wb" or _is_of_all(storage.path, crawler, feed_options)
        ):
            storage._begin(_runs[crawler])
        return storage

    @staticmethod
    def writes_at_once(exporter: Any) -> bool:
        """Tell whether an item is in the file as soon as *exporter*, a class, has exported it."""
        # A project's own exporter may keep all items until its end, as for spreadsheets.
        export = getattr(exporter, "export_item", None)
        return getattr(export, "__module__", None) in _EXPORT_AT_ONCE

    def _begin(self, run: _RunOfFeeds) -> None:
        """Record that the file holds *run*; with `overwrite`, empty it, unless it may hold the run already.

        Now, not with the first item: until then others may have written theirs, or, if this worker is killed
        before, the next would find the items of an older run. Recorded without `overwrite`, too: a later
        worker or crew with it would take the file for an older run's.
        """
        path = Path(self.path)
        if path.exists() and not path.is_file():  # a pipe, a terminal
            return
        overwrite, self.write_mode = self.write_mode == "wb", "ab"
        held = known = False
        with ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)  # as Scrapy does
                record = stack.enter_context(PartsFolder(path, self._home()).record())
                held, known, problem = record.holds(run.run), record.knows(run.crawl), record.problem
                # Before the file is emptied: otherwise the next worker would empty it again.
                record.note(run.crawl, run.run)
            except (OSError, CrewError) as error:
                known, problem = False, str(error)
            if problem and overwrite:
                logger.warning(
                    "The run that %s holds is not recorded: %s. DQ_DATA_DIR names another folder for records",
                    path,
                    problem,
                )
            if not overwrite:
                return
            if not held and (known or run.new):
                with suppress(FileNotFoundError), open(path, "r+b", opener=open_own) as file:
                    file.truncate()
            elif path.exists() and path.stat().st_size:
                logger.warning(
                    "%s is appended to: it may hold what this run has scraped before%s",
                    path,
                    f". {self._second_beginning()}" if self._form in _WITH_BEGINNING else "",
                )
                self._is_warned = True

    def _home(self) -> Path:
        assert self._crawler is not None
        return data_dir(self._crawler.settings.get("DQ_DATA_DIR"))

    def _second_beginning(self) -> str:
        return (
            f"Appended {self._form} has a second beginning in its middle: jsonlines has none, and "
            f"`scrapy dq crawl` writes a complete file"
        )

    def open(self, spider: Spider) -> IO[bytes]:
        """Open for appending, without a buffer; each write is complete or has no effect."""
        path, mode = Path(self.path), self.write_mode
        real_path(path).parent.mkdir(parents=True, exist_ok=True)
        if mode == "wb":
            open(path, "wb", opener=open_own).close()
        unbuffered: Any = _Whole(path, "ab" if mode == "wb" else mode, opener=open_own)
        unbuffered.is_part, unbuffered.failed = self._is_part, self._write_failed
        known = self._is_part or self._is_warned or self._form not in _WITH_BEGINNING
        if not known and path.is_file() and path.stat().st_size:
            logger.warning("%s is appended to: it is not empty. %s", path, self._second_beginning())
        return unbuffered  # type: ignore[no-any-return]

    def _write_failed(self) -> None:
        """Scrapy drops the item, and its request counts as done: what is missing is not scraped again."""
        if self._crawler is not None and self._crawler.stats is not None:
            self._crawler.stats.inc_value(stats.FEED_WRITES_FAILED)
        if self._is_part:
            mark_lost(Path(self.path))


class _Whole(io.FileIO):
    """A file that a failed write leaves unchanged; a pipe cannot be truncated, so it may keep a part."""

    is_part = False
    """Of a feed that is joined: see csv_format.py."""
    failed: Callable[[], None] | None = None
    """Called after a failed write."""
    _syncing: _Syncing | None = None

    def write(self, data: Any) -> int:
        """Write all of *data*, or nothing and raise.

        A full disk may accept a part of it without an error. Once there is room again, the next record would
        continue the incomplete one, and later records could not be separated.
        """
        if not self.seekable():
            return super().write(data)
        if self._syncing is None:
            self._syncing = _Syncing(self)
        end, done = self.seek(0, io.SEEK_END), 0
        whole = memoryview(data).cast("B")
        try:
            while done < len(whole):
                done += super().write(whole[done:])
        except OSError:
            if self.seek(0, io.SEEK_END) == end + done:  # otherwise another process also writes to it
                self.truncate(end)
            if self.failed is not None:
                self.failed()
            raise
        finally:
            # Not earlier: an fsync before the write would clear this, and the data would never be synced.
            self._syncing.written = True
        return done

    def close(self) -> None:
        """Close at once; what was written is on the disk before the process ends."""
        if self._syncing is not None:
            self._syncing.end()
        super().close()


class _Syncing:
    """A thread that syncs a file to the disk: once a second while it is written to, and at its end.

    On the event loop, an fsync would block the crawl for as long as the disk takes. Not a daemon thread: the
    process ends when the last one is done.
    """

    def __init__(self, file: _Whole) -> None:
        self.written = False
        """Something was written after the last fsync."""
        # Its own descriptor: the file's may be closed, and its number used again, while the thread works.
        self._descriptor = os.dup(file.fileno())
        self._name = file.name
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="scrapy-dq-feed").start()

    def end(self) -> None:
        """Sync the rest to the disk, without waiting for it."""
        self._ended.set()

    def _run(self) -> None:
        ended = False
        try:
            while not ended:
                # A program that ends without closing its files waits for this thread.
                ended = self._ended.wait(SYNC_EVERY_S) or not threading.main_thread().is_alive()
                if self.written:
                    self.written = False
                    os.fsync(self._descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not on a disk, such as /dev/null
                logger.warning("%s is not synced to the disk any more: %s", self._name, error)
        finally:
            os.close(self._descriptor)
