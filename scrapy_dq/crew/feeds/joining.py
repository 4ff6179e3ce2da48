"""Joins the parts of one feed into that feed; notes say which feeds crews write.

The notes are files in the data directory, one for each feed. The next crew of the crawl finds by them what a
killed one has left, also if it writes other feeds itself: `%(time)s` gives each command another name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scrapy_dq.crew.errors import CrewError, Interrupted
from scrapy_dq.crew.feeds.formats import JOINERS
from scrapy_dq.crew.feeds.parts import PartsFolder, lacks_items, run_of
from scrapy_dq.crew.feeds.plan import JoinedFeed
from scrapy_dq.crew.feeds.records import Run, folder_in, read_json, write_json
from scrapy_dq.crew.feeds.sources import Sources
from scrapy_dq.text import count_of

SHOWN_BYTES = 64 << 20
"""From this size on, progress is shown."""


class Bar(Protocol):
    """Shows progress; see commands/output/display.py."""

    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


@dataclass(frozen=True)
class Joined:
    """The result for one feed."""

    path: Path
    items: int
    """How many were added."""
    appended: bool
    lacking: int = 0
    """How many worker processes could not write all of their items."""


class Joining:
    """One feed of a crew: `held` while the crew works, `join` at its end.

    Args:
        crawl: its name.
        home: the data directory.
        left: the crew does not write this feed: a killed one has left parts of it.
    """

    def __init__(
        self, feed: JoinedFeed, crawl: str, home: Path, say: Callable[[str], None], *, left: bool = False
    ) -> None:
        self.feed = feed
        self.crawl = crawl
        self.left = left
        self.say = say
        self.home = home
        self._folder = PartsFolder(feed.target, home)
        self._wait_reported = False

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def target(self) -> Path:
        """Links are followed."""
        return self._folder.target

    @property
    def has_parts(self) -> bool:
        return self._folder.has_part_of(None)

    def is_owed_by(self, run: Run) -> bool:
        """Tell whether parts of *run* are not joined yet: its `scrapy dq crawl` was killed."""
        return self._folder.has_part_of(run)

    def held(self) -> AbstractContextManager[None]:
        """Keep other crews from writing this feed.

        Raises:
            FeedInUse: another crew writes it.
        """
        return self._folder.held()

    def join(
        self,
        run: Run,
        bar: Bar,
        stopped: Callable[[], None],
        *,
        took_part: bool = True,
        began: bool = True,
    ) -> Joined | None:
        """Join all parts; None if there are none.

        CRASH at any line: the next crew that writes this feed joins the parts that this one has not.

        Args:
            run: that of the crew. A feed that is `left` holds that of its parts instead.
            stopped: called repeatedly; raises Interrupted to stop, which leaves everything unchanged.
            took_part: False: the run was finished before this crew joined. With -O, the feed may be complete.
            began: False: something was crawled in this run before. With -O, a feed without a record may
                hold its items, so it is appended to.
        Raises:
            CrewError: it cannot be read or written; the parts stay where they are.
        """
        try:
            return self._join(run, bar, stopped, took_part, began)
        except Interrupted:
            raise
        except Exception as error:  # whatever is in a part must not keep the next crawl from starting
            raise CrewError(
                f"{self.feed.target} cannot be joined: {error}. Its parts stay in {self._folder.path}; the "
                f"next `scrapy dq crawl` of this crawl joins them, or, if you remove that folder, goes on "
                f"without them"
            ) from error

    def _join(
        self, run: Run, bar: Bar, stopped: Callable[[], None], took_part: bool, began: bool
    ) -> Joined | None:
        folder = self._folder

        def waiting() -> None:
            if not self._wait_reported:
                self._wait_reported = True
                self.say(f"{folder.target}: workers of an earlier crawl still write; waiting for their end")
            stopped()

        parts = folder.finished_parts(waiting)
        others = [part for part in parts if not _of(part, run)]
        if self.left and parts:
            # All of them, and after what the feed holds, also with -O: that may be of a later run.
            run, took_part = run_of(parts[-1]), True
            self.say(f"{folder.target}: joining what a killed `scrapy dq crawl` has left")
        elif self.feed.overwrite and others:
            self.say(
                f"{folder.target}: discarded the parts of {count_of(len(others), 'worker')} of earlier runs"
            )
            parts = [part for part in parts if part not in others]
            for part in others:
                part.unlink(missing_ok=True)
        elif others:
            self.say(
                f"{folder.target}: also joined the parts of {count_of(len(others), 'worker')} of earlier runs"
            )
        if not parts:
            return None
        with folder.record() as record:
            held = record.holds(run)
            unknown = not (held or began or record.knows(self.crawl))
        there = folder.has_feed()
        appended = there and (not self.feed.overwrite or held or unknown)
        if appended and self.feed.overwrite and unknown:
            self.say(f"{folder.target}: appended to: it may hold what this run has scraped before")
        before = folder.target if appended else None
        sizes = [path.stat().st_size for path in ([before] if before else []) + parts]
        shown = sum(sizes) >= SHOWN_BYTES
        if shown:
            bar.begin(f"bytes of {folder.target.name}", sum(sizes))

        def read(count: int) -> None:
            stopped()
            if shown:
                bar.advance(count)

        with folder.open_joined() as out:
            items = JOINERS[self.feed.format](out, Sources(before, parts, self.feed.options, read))
            out.flush()
            os.fsync(out.fileno())
        if not (items or took_part) and there:
            folder.drop(parts)
            self.say(f"{folder.target}: left unchanged: the run was finished before")
            return None
        folder.replace(parts, self.crawl, run)
        return Joined(folder.target, items, appended, sum(map(lacks_items, parts)))


def _of(part: Path, run: Run) -> bool:
    """Tell whether a part is of the crew's run, or of a later one that its workers have begun."""
    found = run_of(part)
    return found.epoch == run.epoch and found.number >= run.number


@contextmanager
def noted(joining: Joining) -> Iterator[None]:
    """Hold a feed, and note it; at the end, remove the note if all parts are joined.

    CRASH: the note stays. Without parts, nobody acts on it.

    Raises:
        FeedInUse: another crew writes it.
        CrewError: as PartsFolder.held().
    """
    with joining.held():
        note = None
        try:
            name = os.fsencode(f"{joining.crawl}\0{joining.target}")
            note = folder_in(joining.home) / f"{hashlib.sha256(name).hexdigest()[:32]}.json"
            # Of the options, only those that joining needs; others may be classes.
            kwargs = joining.feed.options.get("item_export_kwargs") or {}
            plain = {key: each for key, each in kwargs.items() if isinstance(each, (str, int, type(None)))}
            options = {key: joining.feed.options.get(key) for key in ("format", "encoding")}
            options["item_export_kwargs"] = plain
            write_json(note, {"crawl": joining.crawl, "target": str(joining.target), "options": options})
        except (OSError, CrewError) as error:
            joining.say(
                f"Warning: nothing is recorded about {joining.target}: {error}. If this command is killed, "
                f"only a `scrapy dq crawl` with the same feed joins its parts. DQ_DATA_DIR names another "
                f"folder for records"
            )
        try:
            yield
        finally:
            if note is not None and not joining.has_parts:
                with suppress(OSError):
                    note.unlink(missing_ok=True)


def left_feeds(crawl: str, own: Sequence[Joining], home: Path, say: Callable[[str], None]) -> list[Joining]:
    """Return the feeds of *crawl*, other than *own*, that have parts; their crew may still work."""
    found = []
    targets = {each.target for each in own}
    with suppress(OSError, CrewError):  # the warning above has said so
        for note in sorted(folder_in(home).glob("*.json")):
            with suppress(TypeError, KeyError):  # of version 0.1.0
                read = read_json(note)
                if read["crawl"] != crawl:
                    continue
                feed = JoinedFeed(read["target"], Path(read["target"]), read["options"])
                try:
                    joining = Joining(feed, crawl, home, say, left=True)
                except CrewError as error:
                    say(f"Warning: {error}")
                    continue
                if joining.target not in targets and joining.has_parts:
                    found.append(joining)
    return found
