"""Run `scrapy dq items`: count, export or follow the items in a crawl's journals."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from scrapy.settings import Settings
from scrapy.utils.serialize import ScrapyJSONEncoder

from scrapy_dq.codec import Codec
from scrapy_dq.commands import common
from scrapy_dq.commands.output.display import ProgressBar, print_json, print_table, short
from scrapy_dq.commands.output.exported import feed_lines, feeds_as_json
from scrapy_dq.commands.outputs import export_feeds, set_feeds
from scrapy_dq.commands.streams import until_interrupted
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError
from scrapy_dq.crew.feeds.export import MIB
from scrapy_dq.crew.feeds.exporting import Exports
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run
from scrapy_dq.crew.feeds.journal import exported, not_exported
from scrapy_dq.crew.feeds.plan import plan_feeds
from scrapy_dq.crew.launch import command_of
from scrapy_dq.crew.records import MAGIC, Record, load_module, read
from scrapy_dq.crew.supervisor import StopSignals
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.inspection.place import opened
from scrapy_dq.items.stream import IN_REDIS, Collector
from scrapy_dq.scheduling.feeds import OPEN
from scrapy_dq.settings import Config
from scrapy_dq.text import count_of

POLL_S = 0.5


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Do what the command line says, and return the exit status.

    Raises:
        CommandError, ConfigError, CrewError: the command failed.
    """
    _add_format(options)
    named = set_feeds(settings, options)
    crawler, config = common.spider_named(settings, options)
    folder = ItemsFolder(data_dir(config.data_dir).absolute(), config.crawl)
    codec = codec_of(config, crawler)
    exports_feeds = bool(options.export or named)
    began = datetime.now(timezone.utc).replace(microsecond=0)
    planned = plan_feeds(crawler, began) if exports_feeds else []
    feeds = [feed for feed in planned if feed.uri in named or options.export]
    if exports_feeds and not feeds:
        raise CommandError("FEEDS names no feed that all workers share: name one with -o or -O")
    if config.items == IN_REDIS:
        _collect(config, folder, follow=codec if options.follow else None)
    elif options.follow:
        with until_interrupted():
            _follow(folder, codec, lambda: None)
    if options.follow:
        return DONE
    newest = folder.newest_run()
    if newest is None:
        raise CommandError(
            f"no item of crawl {config.crawl!r} is in {short(folder.path)}: workers of `scrapy dq crawl` "
            f"write them there, if FEEDS, -o or -O names a feed"
        )
    if not exports_feeds:
        _show(folder, newest, options)
        return DONE
    stops = StopSignals()
    with folder.held() as lock:
        stops.listen()
        more = {"DQ_CRAWL": config.crawl.replace("%", "%%")}
        command = command_of(options.spider, options, more, ("dq", "crawl"))
        exports = Exports(feeds, folder, command, lock, began, _say)
        stored, failures = export_feeds(exports, newest, stops, finished=True, began=False)
    if options.json:
        found = {"feeds": feeds_as_json(stored), "feeds_not_written": failures}
        print_json({"crawl": config.crawl, "run": newest.number} | found)
    else:
        for line in (*feed_lines(stored), *failures):
            print(line)
    return FAILED if failures else DONE


@dataclass
class _Counts:
    """Numbers about the journals of one worker."""

    items: int = 0
    size: int = 0
    """Bytes of the journals."""
    unexported: int = 0
    """Items in journals that are not exported completely."""


def _show(folder: ItemsFolder, run: Run, options: argparse.Namespace) -> None:
    journals = folder.journals(run)
    earlier = [path for path in folder.open_journals() if path not in journals]
    workers: defaultdict[int, _Counts] = defaultdict(_Counts)
    with ProgressBar() as bar:
        bar.begin("MiB read", 2 * sum(path.stat().st_size for path in (*journals, *earlier)) // MIB)
        for path in journals:
            workers[_worker_of(path)].size += path.stat().st_size
        for path, count in _counted(journals, bar).items():
            counts = workers[_worker_of(path)]
            counts.items += count
            counts.unexported += count if path.suffix == OPEN else 0
        of_earlier = sum(_counted(earlier, bar).values())
    items = sum(counts.items for counts in workers.values())
    unexported = sum(counts.unexported for counts in workers.values())
    if options.json:
        print_json(
            {"crawl": folder.crawl, "run": run.number, "items": items, "in_no_feed": unexported,
             "of_earlier_runs_in_no_feed": of_earlier, "folder": str(folder.path),
             "workers": [
                 {"worker": number, "items": counts.items, "bytes": counts.size,
                  "in_no_feed": counts.unexported}
                 for number, counts in sorted(workers.items())
             ]}
        )  # fmt: skip
        return
    print(f"Crawl {folder.crawl!r}, run {run.number}: {count_of(items, 'item')} in {short(folder.path)}")
    rows: list[Sequence[object]] = [
        (str(number), counts.items, f"{counts.size / MIB:,.1f}") for number, counts in sorted(workers.items())
    ]
    print_table(("worker", "items", "MiB"), rows, numbers=("worker", "items", "MiB"))
    if unexported:
        print(f"{unexported:,} of them are in no feed yet")
    if of_earlier:
        print(f"{count_of(of_earlier, 'item')} of earlier runs are in no feed yet")
    if unexported or of_earlier:
        print(f"The crawl writes them when it ends; scrapy dq items {options.spider} --export does it now")


def _counted(journals: Sequence[Path], bar: ProgressBar) -> Counter[Path]:
    """Return, for each journal, the number of its items that an export would write."""
    read_bytes = 0

    def passed(size: int) -> None:
        nonlocal read_bytes
        before, read_bytes = read_bytes, read_bytes + size
        bar.advance(read_bytes // MIB - before // MIB)

    found: Counter[Path] = Counter()
    for path, record in exported(journals, not_exported(journals, passed)):
        found[path] += 1
        passed(len(record.data))
    return found


def _worker_of(journal: Path) -> int:
    """Return the number of a worker from the name of its journal."""
    return int(journal.name.split(".")[3].partition("-")[0])


def _collect(config: Config, folder: ItemsFolder, *, follow: Codec | None) -> None:
    """Move items from Redis into journals. With *follow*, continue until Ctrl-C, and print the new items."""
    with opened(config) as place, folder.held(), as_unavailable(place.target), ExitStack() as stack:
        collector = Collector(place.client, config.crawl, folder.path)
        stack.callback(collector.close)
        if follow is not None:
            with until_interrupted():
                _follow(folder, follow, lambda: collector.collect(lambda count: None))
            return
        with ProgressBar() as bar:
            bar.begin("messages of workers", collector.waiting())
            collector.collect(bar.advance)


def _follow(folder: ItemsFolder, codec: Codec, collect: Callable[[], None]) -> None:
    """Print new items until Ctrl-C.

    Args:
        collect: brings new items into the folder.
    """
    encode = ScrapyJSONEncoder().encode
    places: dict[str, int] = {}
    for _ in _new_items(folder, places):
        pass
    _say(f"New items of crawl {folder.crawl!r} are printed as they arrive, until Ctrl-C")
    while True:
        time.sleep(POLL_S)
        collect()
        for record in _new_items(folder, places):
            print(encode(record.item(codec)), flush=True)


def _new_items(folder: ItemsFolder, places: dict[str, int]) -> Iterator[Record]:
    """Yield the items that were not read yet.

    Args:
        places: by name of a journal, the position up to which the journal was read. This function updates
            these positions.
    """
    for path in folder.all_journals():
        name = path.stem  # without the suffix, which changes when all feeds have its items
        with suppress(FileNotFoundError):
            for record in read(path, places.get(name, 0)):
                places[name] = places.get(name, len(MAGIC)) + record.size
                load_module(record)
                if record.is_item:
                    yield record


def _add_format(options: argparse.Namespace) -> None:
    """Append the format of -t to each feed of -o and -O, because Scrapy expects the format there."""
    if options.format:
        for name in ("output", "overwrite_output"):
            feeds = getattr(options, name)
            setattr(options, name, feeds and [f"{feed}:{options.format}" for feed in feeds])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
