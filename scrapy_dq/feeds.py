"""A feed storage for local files that a kill -9 cannot empty."""

from __future__ import annotations

from typing import IO, Any

from scrapy import Spider
from scrapy.extensions.feedexport import FileFeedStorage


class UnbufferedFileFeedStorage(FileFeedStorage):
    """Scrapy's local feed storage, but each item is written to the file as soon as it is exported.

    Scrapy's own keeps up to a buffer of items in the process, which a kill -9 takes with it, while
    their requests are acknowledged. Give each worker a file of its own with `%(dq_worker)s`.
    """

    def open(self, spider: Spider) -> IO[bytes]:
        """Open for appending (or truncated, with `overwrite`), without a buffer."""
        buffered = super().open(spider)
        path, mode = self.path, self.write_mode
        buffered.close()
        unbuffered: Any = open(path, "ab" if mode == "wb" else mode, buffering=0)  # noqa: SIM115
        return unbuffered  # type: ignore[no-any-return]
