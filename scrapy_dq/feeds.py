"""A feed storage for local files that a kill -9 cannot empty, and that a crew's workers can share."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any

from scrapy import Spider
from scrapy.extensions.feedexport import FileFeedStorage

from scrapy_dq.crew.parts import write_lock
from scrapy_dq.crew.recruit import own_recruit

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class UnbufferedFileFeedStorage(FileFeedStorage):
    """Scrapy's local feed storage, but each item is written to the file as soon as it is exported.

    Scrapy's own keeps up to a buffer of items in the process, which a kill -9 takes with it, while
    their requests are acknowledged. Give each worker a file of its own with `%(dq_worker)s`. A worker of
    `scrapy dq crawl` writes a part of its own, in place of a feed that is joined at the end.
    """

    _is_part = False

    @classmethod
    def from_crawler(cls, crawler: Crawler, uri: str, *, feed_options: dict[str, Any] | None = None) -> Self:
        """Scrapy's hook. Source: scrapy/utils/misc.py::build_from_crawler"""
        storage = cls(uri, feed_options=feed_options)
        recruit = own_recruit()
        part = recruit.part(crawler, feed_options) if recruit else None
        if part is not None:
            storage.path, storage.write_mode, storage._is_part = str(part), "ab", True
            # For the life of this process: it may write until its end, and nobody removes a part before.
            write_lock(part.parent)
        return storage

    def open(self, spider: Spider) -> IO[bytes]:
        """Open for appending (or truncated, with `overwrite`), without a buffer; what is written is whole."""
        buffered = super().open(spider)
        path, mode = self.path, self.write_mode
        buffered.close()
        unbuffered: Any = _Whole(path, "ab" if mode == "wb" else mode)
        unbuffered.is_part = self._is_part
        return unbuffered  # type: ignore[no-any-return]


class _Whole(io.FileIO):
    """A file in which a write that fails leaves nothing behind; a pipe cannot be cut, and is as it is."""

    is_part = False
    """Of a feed that is joined: see crew/csv_exporter.py."""

    def write(self, data: Any) -> int:
        """Write all of *data*, or nothing and raise.

        A disk that is full takes a part of it without a word. Once there is room again, the next record
        would be written into the middle of that one, and those after it could not be told apart.
        """
        if not self.seekable():
            return super().write(data)
        end, done = self.seek(0, io.SEEK_END), 0
        whole = memoryview(data).cast("B")
        try:
            while done < len(whole):
                done += super().write(whole[done:])
        except OSError:
            if self.seek(0, io.SEEK_END) == end + done:  # else somebody else writes to it, too
                self.truncate(end)
            raise
        return done
