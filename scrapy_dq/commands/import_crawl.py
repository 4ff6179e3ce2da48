"""`scrapy dq import`: make a crawl of a file that `scrapy dq export` has written."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime

from scrapy.settings import Settings
from scrapy.utils.python import global_object_name

from scrapy_dq.codec.shown import priority_of
from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.input.asking import go_on
from scrapy_dq.commands.input.reading import crawler_named, fingerprinter_of
from scrapy_dq.commands.output.display import ProgressBar, print_found
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.exports.files import BadExport, ExportFile
from scrapy_dq.frontier.archive.load import Loaded, load
from scrapy_dq.frontier.archive.parts import Header, Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.settings import Config

_CONTINUE = (
    "Until the same command is complete no worker can join; `scrapy dq clear --all` deletes what there is"
)


class ImportCrawl(Subcommand):
    """Make a crawl of such a file.

    Makes a crawl of a file that `scrapy dq export` has written: with the DQ_ORDER, DQ_SEEN and DQ_SHARDS of
    the settings. There must be no such crawl. Nothing is lost or doubled if it is interrupted or killed:
    the same command continues, and until it is complete no worker can join.
    """

    name = "import"
    arguments = "[<spider>] <file>"
    words = "words"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "words", nargs="+", metavar="<spider> <file>", help="the name of the spider; the file"
        )
        looking.add_common_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        name = looking.file_after_spider(options)
        config, fingerprinter, spider = _settings_of(settings, options)
        with alone.continued(_CONTINUE):
            try:
                file = ExportFile(name)
                _refuse_other(file.header, config, fingerprinter, spider)
                with looking.opened(config) as place, ProgressBar() as bar:
                    bar.begin("entries", file.header.entries + file.header.tokens)
                    done = alone.with_frontiers(
                        place, lambda frontiers: _load(frontiers, file, config, bar), shards=config.shards
                    )
            except BadExport as error:
                raise CommandError(f"{error}") from error
        found = {
            "crawl": config.crawl, "redis": place.target, "file": name, "before": done.before,
            "entries": done.entries, "fingerprints": done.tokens, "doubts": done.doubts,
        }  # fmt: skip
        rows = [] if done.before else [("requests", done.entries), ("fingerprints", done.tokens)]
        print_found(found, options.json, rows, [*_advice(file, config, done), go_on(options)])
        return DONE


def _settings_of(settings: Settings, options: argparse.Namespace) -> tuple[Config, str, str]:
    """Return the Config, and the classes of fingerprinter and spider; "": only the crawl is named."""
    if not options.spider:
        return looking.config_named(settings, options), "", ""
    crawler, config = crawler_named(settings, options)
    fingerprinter, spider = type(fingerprinter_of(crawler)), type(crawler.spider)
    return config, global_object_name(fingerprinter), global_object_name(spider)


def _refuse_other(header: Header, config: Config, fingerprinter: str, spider: str) -> None:
    """Refuse what workers would not join, or would not find seen."""
    for setting, there, here in (
        ("REQUEST_FINGERPRINTER_CLASS", header.fingerprinter, fingerprinter),
        ("spider class", header.spider, spider),
        ("DQ_PARTITION_BY", header.partition_by, config.partition_by),
    ):
        if there and here and there != here:
            raise CommandError(
                f"the crawl in the file has {setting} {there!r}, this project {here!r}: no worker could "
                "join. Nothing was imported"
            )


async def _load(frontiers: list[Frontier], file: ExportFile, config: Config, bar: ProgressBar) -> Loaded:
    shape = Shape(config.order, config.seen_kind, len(frontiers))
    return await load(
        frontiers, file.header, file.parts(), shape, progress=bar.advance,
        priority_of=lambda payload: priority_of(payload, config.max_entry_bytes),
    )  # fmt: skip


def _advice(file: ExportFile, config: Config, done: Loaded) -> Iterator[str]:
    header = file.header
    if done.before:
        yield "This file was imported before."
    at = datetime.fromtimestamp(header.at_ms / 1000).strftime("%Y-%m-%d %H:%M")
    yield f"Exported on {at} from crawl {header.crawl!r}: {header.shape}."
    for doubt in done.doubts:
        yield f"It is not certain that it is on disk: {doubt}."
    if config.flush_on_start:
        yield "SCHEDULER_FLUSH_ON_START is set: the next crawl would delete what was imported. Unset it."
