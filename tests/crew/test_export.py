"""`scrapy dq crawl` exports the same items as Scrapy alone, even if one of its processes is killed."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from crew.conftest import Scene, SetScene
from support.crew_process import paths_of
from support.project import PLAIN
from support.scrapy_redis_crawl import run_dq
from support.small_disk import FILLER, small_disk
from support.tree_spider import spider_of
from support.waiting import free_port, wait_until

KINDS = '''\
import time
from dataclasses import dataclass, field
from pathlib import Path

import scrapy
from scrapy.exporters import PprintItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage, ItemFilter


class Plain(scrapy.Item):
    path = scrapy.Field()
    n = scrapy.Field(serializer=lambda value: f"<{value}>")


@dataclass
class Data:
    path: str
    n: int
    more: list = field(default_factory=list)


class Odd(dict):
    """The codec refuses it, so it is pickled."""

    def __reduce__(self):
        return Odd, (dict(self),)


class Storage(BlockingFeedStorage):
    def __init__(self, uri, *, feed_options=None):
        self.path = Path(uri.removeprefix("own://"))

    def _store_in_thread(self, file):
        file.seek(0)
        time.sleep(0.01)
        self.path.write_bytes(file.read())
        file.close()


class EverySecond(ItemFilter):
    seen = 0

    def accepts(self, item):
        self.seen += 1
        return self.seen % 2 == 0


class Exporter(PprintItemExporter):
    def start_exporting(self):
        self.file.write(b"begin\\n")


class Told:
    """An extension that needs the signal of a stored feed."""

    @classmethod
    def from_crawler(cls, crawler):
        told = cls()
        crawler.signals.connect(told.closed, scrapy.signals.feed_slot_closed)
        return told

    def closed(self, slot):
        with open("told", "a") as file:
            file.write(f"{slot.uri} {slot.itemcount}\\n")
'''
MANY_KINDS = spider_of(
    """
    def parse(self, response):
        yield from response.follow_all(css="a", callback=self.parse)
        path = page_path(response)
        for n in range(25):
            yield {"path": path, "n": n, "text": "\\u00e9 <&> \\n" * n}
            yield Plain(path=path, n=n)
            yield Data(path, n, [{"a": n}])
            yield Odd(path=path, n=n)
""",
    before="from tree_project.kinds import *\n",
)
FEEDS: dict[str, dict[str, Any]] = {
    "all.json": {"format": "json"},
    "latin.csv": {"format": "csv", "encoding": "latin-1", "fields": ["n", "path"]},
    "own.csv": {"format": "csv", "item_classes": ["tree_project.kinds.Data"]},
    "all.xml": {"format": "xml", "indent": 2},
    "lines.jsonl.gz": {"format": "jsonlines", "gzip_mtime": 0, "gzip_filename": "",
                       "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]},
    "all.pickle": {"format": "pickle"},
    "batch-%(batch_id)d-%(name)s.jsonl": {"format": "jsonlines", "batch_item_count": 7},
    "own://threaded.jsonl": {"format": "jsonlines"},
    "some.jsonl": {"format": "jsonlines", "item_classes": ["tree_project.kinds.Plain"], "fields": {"n": "N"}},
    "second.jsonl": {"format": "jsonlines", "item_filter": "tree_project.kinds.EverySecond"},
    "odd.txt": {"format": "odd", "overwrite": True},
    "none.json": {"format": "json", "item_classes": ["tree_project.kinds.Told"]},
}  # fmt: skip
KINDS_SETTINGS: dict[str, Any] = {
    "ITEM_PIPELINES": {},
    "FEEDS": FEEDS,
    "FEED_STORAGES": {"own": "tree_project.kinds.Storage"},
    "FEED_EXPORTERS": {"odd": "tree_project.kinds.Exporter"},
    "EXTENSIONS": {"tree_project.kinds.Told": 500},
}


def journals(here: Scene) -> list[Path]:
    """Return the journals that are not exported yet."""
    return sorted(here.project.folder.glob(".scrapy/dq/items/*/*.journal"))


def written(here: Scene, names: set[str]) -> dict[str, bytes]:
    """Return the content of each new file in the project's folder by name, and delete the files."""
    found = {}
    for path in here.project.folder.iterdir():
        if path.is_file() and path.name not in names and not re.match(r"crew-|worker-|record", path.name):
            found[path.name.replace(here.project.name, "name")] = path.read_bytes()
            path.unlink()
    return found


def test_all_kinds_of_feeds_equal_the_feeds_of_plain_scrapy(scene: SetScene) -> None:
    """With one worker, each feed has the same bytes as with Scrapy alone.

    This holds for each format, encoding, batch, filter and custom class, and for a feed without items.
    """
    here = scene(KINDS_SETTINGS, pages=1, spider=MANY_KINDS)
    (here.project.folder / "tree_project" / "kinds.py").write_text(KINDS)
    names = {path.name for path in here.project.folder.iterdir()}
    here.project.run_worker(settings=PLAIN | {"DQ_ENABLED": "False"})
    alone = written(here, names)
    assert len(alone) == len(FEEDS) - 1 + 15 + 1  # plus the batches and the file of the extension
    crew = here.crew("-w", "1")
    assert crew.wait() == 0, crew.err + crew.out
    assert "all.json: 100 items\n" in crew.out
    assert "own://threaded.jsonl: 100 items\n" in crew.out
    together = written(here, names)
    assert sorted(together.pop("told").split(b"\n")) == sorted(alone.pop("told").split(b"\n"))
    assert sorted(together) == sorted(alone)
    for name in alone:
        assert together[name] == alone[name], name
    assert not journals(here)


def items_of(name: str, data: bytes) -> Iterator[Any]:
    """Yield each item of a feed, without the text around the items."""
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    if name.endswith(".json"):
        yield from map(str, json.loads(data or b"[]"))
    elif name.endswith(".xml"):
        yield from (ElementTree.tostring(item).strip() for item in ElementTree.fromstring(data))
    elif name.endswith(".pickle"):
        file = BytesIO(data)
        while file.tell() < len(data):
            yield str(pickle.load(file))
    else:
        yield from map(str, data.splitlines())


def test_feeds_of_several_workers_have_the_items_of_plain_scrapy(scene: SetScene) -> None:
    """Each kind of feed has the same items as with Scrapy alone. All batches except the last are full."""
    here = scene(KINDS_SETTINGS, pages=12, spider=MANY_KINDS)
    (here.project.folder / "tree_project" / "kinds.py").write_text(KINDS)
    names = {path.name for path in here.project.folder.iterdir()}
    here.project.run_worker(settings=PLAIN | {"DQ_ENABLED": "False"})
    alone = written(here, names)
    crew = here.crew("-w", "3")
    assert crew.wait(120) == 0, crew.err + crew.out
    together = written(here, names)
    assert sorted(together) == sorted(alone)
    found: list[defaultdict[str, Counter[Any]]] = [defaultdict(Counter), defaultdict(Counter)]
    for feeds, counts in zip((alone, together), found, strict=True):
        for name, data in feeds.items():
            if name != "told":
                counts[re.sub(r"batch-\d+", "batch", name)].update(items_of(name, data))
    for counts in found:
        # The order of all items decides which items this feed contains.
        counts["second.jsonl"] = Counter({"": counts["second.jsonl"].total()})
    assert found[0] == found[1]
    sizes = [data.count(b"\n") for name, data in together.items() if name.startswith("batch-")]
    assert sorted(sizes)[1:] == [7] * (len(sizes) - 1)


WAITS = """
import os
import time
from pathlib import Path

from scrapy.extensions.feedexport import ItemFilter


class Waits(ItemFilter):
    def accepts(self, item):
        Path("exporting").write_text(str(os.getpid()))
        while Path("wait").exists():
            time.sleep(0.01)
        return True
"""


def test_the_next_command_completes_a_killed_export(scene: SetScene) -> None:
    """While the export outlives its parent, other commands are refused. Later, the feed is complete."""
    feeds = {"items.jsonl": {"format": "jsonlines", "item_filter": "tree_project.waits.Waits"}}
    here = scene({"FEEDS": feeds}, pages=10)
    (here.project.folder / "tree_project" / "waits.py").write_text(WAITS)
    wait, exporting = here.project.folder / "wait", here.project.folder / "exporting"
    wait.touch()
    crew = here.crew("-w", "2")
    wait_until(exporting.exists, "the export begins", 30)
    wait_until(lambda: bool(exporting.read_text()), "the process id is written")
    crew.kill()
    refused = here.crew("-w", "2")
    assert refused.wait() == 1
    assert "another `scrapy dq crawl` or `scrapy dq items` is using this crawl's items" in refused.err
    os.kill(int(exporting.read_text()), signal.SIGKILL)
    assert not here.feed.exists()
    following = here.crew("-w", "2")
    wait_until(lambda: "now, and nothing is crawled" in following.err, "the export begins again")
    following.interrupt()
    assert following.wait() == 1
    assert f"{here.feed} is not written: interrupted. Its items and export.log stay in " in following.out
    wait.unlink()
    last = here.crew("-w", "2")
    assert last.wait() == 0
    assert "Run 0 was finished, but its feeds were not written" in last.err
    assert paths_of(here.feed) == dict.fromkeys(here.site.paths, 1)
    assert set(here.site.hits().values()) == {1}
    assert not journals(here)


FAILS = """
from scrapy.exporters import JsonLinesItemExporter


class Fails(JsonLinesItemExporter):
    def finish_exporting(self):
        raise ValueError("no end")
"""


def test_an_exporter_that_fails_at_its_end_has_not_written_the_feed(scene: SetScene) -> None:
    """Scrapy would count such a feed neither as stored nor as failed."""
    feeds = {
        "items.jsonl": {"format": "fails"},
        "-%(batch_id)d.jsonl": {"format": "jl", "batch_item_count": 3},
    }
    exporters = {"fails": "tree_project.fails.Fails"}
    here = scene({"FEEDS": feeds, "FEED_EXPORTERS": exporters}, pages=3)
    (here.project.folder / "tree_project" / "fails.py").write_text(FAILS)
    crew = here.crew("-w", "1")
    assert crew.wait() == 1
    assert f"{here.feed} is not written: " in crew.out
    assert "-1.jsonl: 3 items\n" in crew.out
    assert journals(here)
    assert not here.feed.exists()


def test_items_for_a_storage_that_is_down_stay_for_another_feed(scene: SetScene) -> None:
    """The output shows no login. Nothing is sent to the storage before the run is finished."""
    here = scene(pages=30, latency_s=0.1)
    remote = f"ftp://me:s3kr@127.0.0.1:{free_port()}/all.jl"
    first = here.crew("-w", "1", "-o", remote, "-o", "items.jsonl", "-s", "CLOSESPIDER_PAGECOUNT=9")
    assert first.wait() == 1
    assert "/all.jl: is written when the run is finished" in first.err
    assert paths_of(here.feed) == here.project.count("done")
    second = here.crew("-w", "1", "-o", remote, "-o", "items.jsonl")
    assert second.wait() == 1
    assert "\nitems.jsonl: 30 items\n" in second.out
    assert re.search(
        r"\nftp://...@127\.0\.0\.1:\d+/all\.jl is not written: Error storing jl feed", second.out
    )
    assert "s3kr" not in first.out + first.err + second.out + second.err
    third = here.crew("-w", "1", "-o", "other.jsonl")
    assert third.wait() == 0
    assert "Run 0 was finished, but its feeds were not written" in third.err
    assert paths_of(here.feed.with_name("other.jsonl")) == dict.fromkeys(here.site.paths, 1)
    assert here.done() == 30


SLOW = """
import time


class Slow:
    def __init__(self, options):
        pass

    def accepts(self, item):
        time.sleep(0.005)
        return True
"""
MANY_ITEMS = spider_of("""
    def parse(self, response):
        for n in range(1000):
            yield {"path": f"/{n}"}
""")


def test_an_export_that_is_interrupted_leaves_no_file_behind(scene: SetScene) -> None:
    """The export process removes its unfinished file, and the next command writes the feed."""
    feeds = {"items.jsonl": {"format": "jsonlines", "item_filter": "tree_project.slow.Slow"}}
    here = scene({"FEEDS": feeds}, pages=1, spider=MANY_ITEMS)
    (here.project.folder / "tree_project" / "slow.py").write_text(SLOW)
    building = here.feed.with_name(".items.jsonl.new")
    crew = here.crew("-w", "1")
    wait_until(lambda: building.exists() or not crew.running, "the export begins", 30)
    crew.interrupt()
    assert crew.wait() == 1
    assert f"{here.feed} is not written: interrupted. Its items and export.log stay in " in crew.out
    assert not building.exists()
    assert not here.feed.exists()
    assert here.crew("-w", "1").wait() == 0
    assert here.feed.read_text().count("\n") == 1000


@pytest.mark.parametrize("flag", ["-o", "-O"])
def test_items_left_by_an_earlier_run_are_appended_but_never_replace_a_feed(
    scene: SetScene, flag: str
) -> None:
    """The test simulates a crew that was killed before its export. Other workers then finish the next run."""
    here = scene(pages=3)
    assert here.crew("-w", "1", "-o", "first.jsonl").wait() == 0
    for path in (here.project.folder / ".scrapy" / "dq" / "items").glob("*/*.exported"):
        path.rename(path.with_suffix(".journal"))
    here.project.run_worker()
    crew = here.crew("-w", "1", flag, "items.jsonl")
    assert crew.wait() == 0
    assert "run 2 is finished" in crew.out
    assert paths_of(here.feed) == dict.fromkeys(here.site.paths, 1 + (flag == "-o"))
    assert not journals(here)


LONG_ITEMS = spider_of("""
    def parse(self, response):
        yield from response.follow_all(css="a", callback=self.parse)
        yield {"path": page_path(response), "text": "x" * 1000}
""")


def test_items_that_find_no_room_on_the_disk_come_back_by_a_retry(scene: SetScene, tmp_path: Path) -> None:
    """The disk is first too full for the journals, and later too full for the feed. No item is lost."""
    with suppress(PermissionError), small_disk(tmp_path / "disk") as disk:
        here = scene(pages=30, spider=LONG_ITEMS, project={"DQ_DATA_DIR": str(disk.folder / "data")})
        disk.fill()
        os.truncate(disk.folder / FILLER, (disk.folder / FILLER).stat().st_size - 16_384)
        words = ("-w", "1", "--log-dir", "logs", "-o", "items.jsonl")
        first = here.crew(*words)
        assert first.wait() == 1
        assert "run 0 is finished" in first.out
        told = re.search(r"^(\d+) items could not be written", first.out, re.MULTILINE)
        assert told is not None, first.out + first.err
        assert f"Requests of this run: {told[1]} failed for good" in first.out
        disk.free()
        again = run_dq(here.project, "retry", here.project.name, "--all", "--yes")
        assert again.returncode == 0, again.stderr
        disk.fill()
        os.truncate(disk.folder / FILLER, (disk.folder / FILLER).stat().st_size - 49_152)
        feed = disk.folder / "items.jsonl"
        second = here.crew(*words[:-1], str(feed))
        assert second.wait() == 1
        assert f"{feed} is not written: " in second.out
        assert "No space left on device" in second.out
        assert not list(disk.folder.glob(".*.new"))
        disk.free()
        assert here.crew(*words[:-1], str(feed)).wait() == 0
        assert paths_of(feed) == dict.fromkeys(here.site.paths, 1)
        return
    pytest.skip("a small disk cannot be mounted")
