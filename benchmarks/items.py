"""Part `items` compares the journals of a crew, and the export from them, with a crawl by Scrapy alone."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from scrapy import Spider

from benchmarks.part import Bar, Part
from benchmarks.redis_here import start_redis
from benchmarks.tables import markdown, ratios, spread
from scrapy_dq.codec import Codec
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.journal import Journal
from support.project import PLAIN, Project
from support.tree_spider import spider_of

PAGES, EACH = 500, 100
ITEMS = PAGES * EACH
REPETITIONS = 3
SPIDER = spider_of(f"""
    async def start(self):
        for n in range({PAGES}):
            yield scrapy.Request(f"data:,{{n}}")

    def parse(self, response):
        for n in range({EACH}):
            yield {{"path": f"{{response.text}}/{{n}}", "n": n, "text": "x" * 400, "price": 9.99}}
""")
PLAINLY, CREW, JOURNAL = "plain", "crew", "journal"
EXPORTS = {"jsonlines": "JSON Lines", "csv": "CSV", "json": "JSON", "xml": "XML"}
TITLES = {
    PLAINLY: "a whole `scrapy crawl -O items.jsonl` without scrapy_dq",
    CREW: "a whole `scrapy dq crawl -w 1 -O items.jsonl`",
    JOURNAL: "only the journal: items and, after each {each}, the end of a request",
    **{form: f"`scrapy dq items -O`: {title}" for form, title in EXPORTS.items()},
}
LEGEND = """\
{items:,} items of 0.45 KB from {pages} `data:` URLs. Commands include the start of their processes. *Of the
crawl*: relative to the first row in the same repetition."""


class Items(Part):
    """The time that items need."""

    name: ClassVar[str] = "items"
    title: ClassVar[str] = "Items"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Crawl without and with scrapy_dq, write a journal, and export again in each format."""
        found: dict[str, list[float]] = {what: [] for what in TITLES}
        plain = [f"-s{key}={value}" for key, value in {**PLAIN, "DQ_ENABLED": False}.items()]
        for repetition in range(REPETITIONS):
            with start_redis() as server, tempfile.TemporaryDirectory(prefix="dq-items-") as name:
                folder = Path(name)
                project = Project(
                    folder / "project", [], redis_url=server.url, spider=SPIDER,
                    settings={"ITEM_PIPELINES": {}, "LOG_LEVEL": "WARNING", "DQ_URL_SCHEMES": ["data"]},
                )  # fmt: skip
                commands = {
                    PLAINLY: ["crawl", project.name, "-O", "plain.jsonl", *plain],
                    CREW: ["dq", "crawl", project.name, "-w", "1", "-O", "crew.jsonl"],
                }
                for what in list(commands)[:: -1 if repetition % 2 else 1]:
                    found[what].append(_seconds(project, commands[what]))
                found[JOURNAL].append(_journal_seconds(folder))
                for form in EXPORTS:
                    words = ["dq", "items", project.name, "-O", f"again.{form}", "-t", form]
                    found[form].append(_seconds(project, words))
                for feed in ("plain.jsonl", "crew.jsonl", "again.jsonlines"):
                    count = len((project.folder / feed).read_text().splitlines())
                    assert count == ITEMS, (feed, count)
            tell(", ".join(f"{what}: {times[-1]:.1f} s" for what, times in found.items()))
        return found

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return no targets."""
        return []

    def section(self, found: dict[str, Any]) -> str:
        """Return a table with a row for each way."""
        rows = [
            [
                title.format(each=EACH), spread(found[what], 2),
                spread([ITEMS / seconds for seconds in found[what]]),
                spread(ratios(found[what], found[PLAINLY]), 3),
            ]
            for what, title in TITLES.items()
        ]  # fmt: skip
        table = markdown(["", "seconds", "items/s", "of the crawl"], rows)
        return f"{table}\n\n{LEGEND.format(items=ITEMS, pages=PAGES)}"

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw nothing."""
        return []


def _seconds(project: Project, words: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(
        project.command(*words), cwd=project.folder, env=project.environ(), check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.monotonic() - began


def _journal_seconds(folder: Path) -> float:
    """Return the time to write the same items, and the ends of their requests."""
    journal = Journal(folder, Run("epoch", 0), 1, Codec(Spider("any"), spider_modules=[]))
    began = time.monotonic()
    for page in range(PAGES):
        entry_id = b"%012d" % page
        for n in range(EACH):
            journal.add(entry_id, {"path": f"{page}/{n}", "n": n, "text": "x" * 400, "price": 9.99})
        journal.ended([entry_id], [])
    journal.close()
    return time.monotonic() - began


PART = Items()
