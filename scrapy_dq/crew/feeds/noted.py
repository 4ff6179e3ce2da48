"""Notes of the feeds that crews write, one file each in the data directory.

The next crew of the crawl finds by them what a killed one has left, also if it writes other feeds itself:
`%(time)s` gives each command another name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.joining import Joining
from scrapy_dq.crew.feeds.plan import JoinedFeed
from scrapy_dq.crew.feeds.records import folder_in, read_json, write_json


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
