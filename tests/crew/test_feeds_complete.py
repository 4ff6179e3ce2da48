"""Three workers write feeds of all kinds, and one worker is killed. Every feed has each item once."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections import Counter
from csv import DictReader
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from crew.conftest import SetScene
from crew.outcome import journals
from support.waiting import wait_until

OWN = """
from pathlib import Path

from scrapy.extensions.feedexport import BlockingFeedStorage


class Storage(BlockingFeedStorage):
    def __init__(self, uri, *, feed_options=None):
        self.path = Path(uri.removeprefix("own://"))

    def _store_in_thread(self, file):
        file.seek(0)
        self.path.write_bytes(file.read())
        file.close()
"""
PAGES = 300
BATCH = 100
FEEDS: dict[str, dict[str, Any]] = {
    "all.csv.gz": {"format": "csv", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]},
    "all.xml": {"format": "xml"},
    "all.json": {"format": "json"},
    "batch-%(batch_id)d.jsonl": {"format": "jsonlines", "batch_item_count": BATCH},
    "own://own.jsonl": {"format": "jsonlines"},
}


def lines(path: Path) -> list[str]:
    return [json.loads(line)["path"] for line in path.read_text().splitlines()]


def test_feeds_of_all_kinds_are_complete_when_a_worker_was_killed(scene: SetScene) -> None:
    """Feeds are csv.gz, XML, JSON, batches of 100 items, and a storage of the project."""
    own = {"FEEDS": FEEDS, "FEED_STORAGES": {"own": "tree_project.own.Storage"}}
    here = scene(own, pages=PAGES, latency_s=0.05)
    folder = here.project.folder
    (folder / "tree_project" / "own.py").write_text(OWN)
    crew = here.crew("-w", "3")
    wait_until(lambda: here.done() >= PAGES // 3, "a third of the pages are done", 60)
    os.kill(crew.pids[0], signal.SIGKILL)
    assert crew.wait(120) == 0, crew.err + crew.out
    assert "worker 1 died: killed by SIGKILL" in crew.err

    with gzip.open(folder / "all.csv.gz", "rt") as file:
        rows = [row["path"] for row in DictReader(file)]
    batches = [lines(folder / f"batch-{number}.jsonl") for number in (1, 2, 3)]
    found = {
        "csv.gz": rows,
        "xml": [item.findtext("path") for item in ElementTree.parse(folder / "all.xml").getroot()],
        "json": [item["path"] for item in json.loads((folder / "all.json").read_text())],
        "batches": [path for batch in batches for path in batch],
        "own": lines(folder / "own.jsonl"),
    }
    assert [len(batch) for batch in batches] == [BATCH] * 3
    for kind, paths in found.items():
        assert Counter(paths) == dict.fromkeys(here.site.paths, 1), kind
    assert not journals(here)
