"""The storage of local feeds in an exporting process: a new file replaces the feed in one step.

A feed holds its content from before the run, and all items of the run, however often it is exported. For
this, the process records the size of the older content, and the inode and size of the new file.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import IO, Any

from scrapy import Spider
from scrapy.extensions.feedexport import FileFeedStorage

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run, read_json, write_json
from scrapy_dq.crew.feeds.journal import Work
from scrapy_dq.crew.own_files import real_path
from scrapy_dq.filesystem import sync_folder

CHUNK = 1 << 20
FIELD_BYTES = (1 << 31) - 1
"""Maximum size of a field of a CSV file.

The first row may be a page's text, which may be longer than 128 KiB, the default limit of the csv module.
"""


class ReplacingFileStorage(FileFeedStorage):
    """Builds a new file next to the old one. A feed that is split into batches continues no older file."""

    work: Work
    """The task of this process, which exports one feed."""
    folder: ItemsFolder
    columns: list[str] | None = None
    """The columns of all items, if the feed is CSV and neither its options nor the project's exporter names
    columns."""
    building: Path | None = None
    """The new file, which this process removes if it fails."""
    appends = False
    """The feed holds content from before this run."""

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._options = feed_options if feed_options is not None else {}
        self._is_batch = bool(self._options.get("batch_item_count"))

    def open(self, spider: Spider) -> IO[bytes]:
        """Return a new file that begins with the feed's content from before this run."""
        self._target = real_path(Path(self.path))
        run = Run(*self.work.run)
        self._notes = self.folder.notes_of(run, self._target)
        self._is_known = bool(self.folder.older_notes(run, self._target))
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._new = self._target.with_name(f".{self._target.name}.new")
        parts = [] if self._is_batch else self._parts_before()
        self._new.unlink(missing_ok=True)
        # O_EXCL refuses a link that another user has put there.
        file = os.fdopen(os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "w+b")
        ReplacingFileStorage.building = self._new
        for begin, end in parts:
            with self._target.open("rb") as old:
                old.seek(begin)
                while begin < end and (chunk := old.read(min(CHUNK, end - begin))):
                    file.write(chunk)
                    begin += len(chunk)
        self._size_before = file.tell()
        self.appends = self._size_before > 0
        if self.appends and self._options.get("format") in ("json", "xml"):
            raise CrewError(f"nothing can be appended to {self._target}, which has an end. -O replaces it")
        # Scrapy reads these options only after the file is open.
        if self.columns is not None:
            self._options["fields"] = self.columns
        if self.appends and self._options.get("format") == "csv":
            self._continue_csv(file)
        return file

    def store(self, file: IO[bytes]) -> None:
        """Replace the feed.

        CRASH at any line: the next export writes the same content.
        """
        file.flush()
        now = self._found()
        if now is not None and now.st_uid == os.geteuid():
            # Drop set-user-ID and execute bits: another user's program must not run as this user.
            os.fchmod(file.fileno(), now.st_mode & 0o666)
        os.fsync(file.fileno())
        new = os.fstat(file.fileno())
        file.close()
        if not self._is_batch:
            write_json(self._notes, [*read_json(self._notes), (self._size_before, new.st_ino, new.st_size)])
        ReplacingFileStorage.building = None
        os.replace(self._new, self._target)
        sync_folder(self._target.parent)

    def _found(self) -> os.stat_result | None:
        """Return the status of the feed's file, or None without a file."""
        return self._target.lstat() if self._target.is_file() else None

    def _parts_before(self) -> list[tuple[int, int]]:
        """Return the parts of the file with content from before this run, as pairs of positions.

        Text that another program has appended since the last export also counts as such content. If another
        program has replaced the file, all of the file counts.
        """
        now, notes = self._found(), read_json(self._notes)
        if notes is None:
            # -O drops the old content, unless this content may belong to the run.
            old = self._options.get("overwrite") and not self._notes.exists()
            old = old and (self._is_known or not self.work.keeps)
            before = 0 if old or now is None else now.st_size
            notes = [(before, now.st_ino, now.st_size)] if now is not None else []
            write_json(self._notes, notes)
        elif notes and self._new.exists() and self._new.lstat().st_ino == notes[-1][1]:
            write_json(self._notes, notes[:-1])  # the last export was killed before it replaced the file
            return self._parts_before()
        if now is None:
            return []
        before, inode, size = notes[-1] if notes else (0, 0, 0)
        if inode == now.st_ino and size <= now.st_size:
            return [(0, before), (size, now.st_size)]
        return [(0, now.st_size)]

    def _continue_csv(self, file: IO[bytes]) -> None:
        """Set the options: no second header is written, and columns that the first one lacks come last."""
        kwargs = self._options.get("item_export_kwargs") or {}
        if self.columns is not None and kwargs.get("include_headers_line", True):
            csv.field_size_limit(FIELD_BYTES)
            text = io.TextIOWrapper(file, self._options.get("encoding") or "utf-8", newline="")
            text.seek(0)
            dialect = {name: kwargs[name] for name in ("delimiter", "quotechar") if name in kwargs}
            header = next(csv.reader(text, **dialect), [])
            text.detach()
            file.seek(0, io.SEEK_END)
            self._options["fields"] = list(dict.fromkeys([*header, *self.columns]))
        self._options["item_export_kwargs"] = {**kwargs, "include_headers_line": False}
