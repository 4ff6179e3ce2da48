"""The feed storage of workers: what is written is whole, whatever the disk does."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exporters import CsvItemExporter, JsonItemExporter, JsonLinesItemExporter

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.csv_format import PartCsvItemExporter
from scrapy_dq.crew.feeds.formats import JOINERS
from scrapy_dq.crew.feeds.plan import plan_feeds
from scrapy_dq.crew.feeds.sources import Sources
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage, _Whole
from support.waiting import LONGEST_S, wait_until

EXPORTERS = {"jsonlines": JsonLinesItemExporter, "json": JsonItemExporter, "csv": CsvItemExporter}


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let files grow to *size* bytes and no further, as on a disk that is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("kind", EXPORTERS)
def test_an_item_that_finds_no_room_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    """It fails, so that it is logged; half of it would spoil what is written once there is room again."""
    part = tmp_path / "1.part"
    file: Any = UnbufferedFileFeedStorage(str(part)).open(Spider("any"))
    exporter = EXPORTERS[kind](file)
    exporter.start_exporting()
    exporter.export_item({"text": "first"})
    with room_for(part.stat().st_size + 50), pytest.raises(OSError, match="File too large"):
        exporter.export_item({"text": '"' + "x" * 100})
    exporter.export_item({"text": "last"})
    exporter.finish_exporting()
    file.close()
    joined = tmp_path / kind
    with joined.open("wb") as out:
        sources = Sources(None, [part], {"format": kind}, lambda count: None)
        assert JOINERS[kind](out, sources) == 2
    texts = {"json": '[\n{"text": "first"},\n{"text": "last"}\n]', "csv": "text\nfirst\nlast\n"}
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("first", "last"))
    assert joined.read_text() == texts.get(kind, lines)


def test_a_pipe_is_a_file_like_any_other(tmp_path: Path) -> None:
    """Nothing can be cut there."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file: Any = UnbufferedFileFeedStorage(str(tmp_path / "pipe")).open(Spider("any"))
    with file:
        JsonLinesItemExporter(file).export_item({"text": "first"})
    assert os.read(reader, 100) == b'{"text": "first"}\n'
    os.close(reader)


def test_what_is_written_is_on_the_disk_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync is called by another thread than the loop's, once a second, and in the end."""
    synced: list[tuple[int, int, float]] = []
    real = os.fsync
    path = tmp_path / "feed.jsonl"

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        real(descriptor)
        if os.path.samestat(found, path.stat()):  # others' files may be synced meanwhile
            synced.append((threading.get_ident(), found.st_size, time.monotonic()))

    monkeypatch.setattr(os, "fsync", fsync)
    file: Any = UnbufferedFileFeedStorage(str(path)).open(Spider("any"))
    exporter = JsonLinesItemExporter(file)
    began = time.monotonic()
    while len(synced) < 2:
        exporter.export_item({"text": "often"})
        time.sleep(0.001)
        assert time.monotonic() < began + 30
    wait_until(lambda: synced[-1][1] == path.stat().st_size, "the rest is synced")
    for before, after in pairwise([began, *(at for *_, at in synced)]):
        assert after - before >= 0.9
    quiet = len(synced)
    time.sleep(2.2)
    # One more for a write that came between an fsync and the note that it was needed.
    assert len(synced) <= quiet + 1, "nothing was written"
    exporter.export_item({"text": "last"})
    file.close()
    wait_until(lambda: "scrapy-dq-feed" not in {t.name for t in threading.enumerate()}, "the thread ends")
    assert synced[-1][1] == path.stat().st_size, "the last one is synced"
    assert len(synced) <= quiet + 2, "once"
    assert threading.get_ident() not in {thread for thread, *_ in synced}


def test_a_disk_that_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Items go on to be written; no thread ends with a traceback."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    file: Any = UnbufferedFileFeedStorage(str(tmp_path / "feed.jsonl")).open(Spider("any"))
    file.write(b"an item\n")
    file.close()
    wait_until(lambda: "feed.jsonl is not synced to the disk any more: [Errno 5]" in caplog.text, "a word")


@pytest.mark.parametrize("closes", [True, False])
def test_a_process_ends_when_its_feed_is_on_the_disk(closes: bool, tmp_path: Path) -> None:
    """Also one that does not close it; and what cannot be synced is no error."""
    program = (
        "import os, sys; from scrapy import Spider\n"
        "from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage\n"
        "real = os.fsync\n"
        "os.fsync = lambda fd: (os.write(1, b'%d\\n' % os.fstat(fd).st_size), real(fd))\n"
        "files = [UnbufferedFileFeedStorage(path).open(Spider('any')) for path in sys.argv[2:]]\n"
        "for file in files: file.write(b'12345')\n"
        "if sys.argv[1] == 'True': [file.close() for file in files]\n"
    )
    command = [sys.executable, "-c", program, str(closes), str(tmp_path / "feed"), os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=True)
    assert sorted(done.stdout.split()) == ["0", "5"]
    assert done.stderr == ""


# (Python's own csv module cannot read some of what it writes: \\r beside other ends of lines, NUL.)
TEXT = st.text(st.sampled_from("a\"'+,\né€"), max_size=3)
KWARGS: list[dict[str, Any]] = [
    {}, {"quoting": csv.QUOTE_ALL}, {"delimiter": "+", "quotechar": "'"}, {"lineterminator": "\n"},
]  # fmt: skip


@pytest.mark.parametrize("kwargs", KWARGS)
@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(["a", '"', "+columns+"]), TEXT, min_size=1)))
def test_no_column_of_a_part_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, kwargs: dict[str, Any], items: list[dict[str, str]]
) -> None:
    """Whichever item brings it; every cut of the part, as by a kill, leaves all items before it."""
    folder = tmp_path_factory.mktemp("csv")
    ends = [0]
    with exporting(folder / "0.part", **kwargs) as exporter:
        for item in items:
            exporter.export_item(item)
            ends.append((folder / "0.part").stat().st_size)
    whole = (folder / "0.part").read_bytes()
    for count, end in enumerate(ends):
        following = ends[count + 1] if count + 1 < len(ends) else end + 1
        for cut in {end, (end + following) // 2, following - 1}:
            (folder / "0.part").write_bytes(whole[:cut])
            rows = list(csv.DictReader(io.StringIO(joined_csv(folder, kwargs), newline=""), **reads(kwargs)))
            assert [filled(row) for row in rows] == [filled(item) for item in items[:count]]


def reads(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "quoting"}


def filled(item: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in item.items() if value}


@contextmanager
def exporting(part: Path, **kwargs: Any) -> Iterator[PartCsvItemExporter]:
    storage = UnbufferedFileFeedStorage(str(part))
    storage._is_part = True
    with storage.open(Spider("any")) as file:
        exporter = PartCsvItemExporter(file, **kwargs)  # type: ignore[arg-type]
        yield exporter
        exporter.finish_exporting()


def joined_csv(folder: Path, kwargs: dict[str, Any]) -> str:
    out = io.BytesIO()
    options = {"format": "csv", "item_export_kwargs": kwargs}
    JOINERS["csv"](out, Sources(None, sorted(folder.glob("*.part")), options, lambda count: None))
    return out.getvalue().decode()


def test_columns_that_were_asked_for_stay_and_a_full_disk_adds_none(tmp_path: Path) -> None:
    """So do those of a file that is not a part and is not joined."""
    with exporting(tmp_path / "0.part", fields_to_export=["a"]) as exporter:
        exporter.export_item({"a": 1, "b": 2})
    assert (tmp_path / "0.part").read_text() == "a\n1\n"
    (tmp_path / "0.part").unlink()
    with exporting(tmp_path / "0.part") as exporter:
        with room_for(5), pytest.raises(OSError, match="File too large"):
            exporter.export_item({"c": 1})
        exporter.export_item({"c": 2})
        with room_for(16), pytest.raises(OSError, match="File too large"):
            exporter.export_item({"d": 3})
        exporter.export_item({"d": 4})
    assert joined_csv(tmp_path, {}).split() == ["c,d", "2,", ",4"]
    (tmp_path / "0.lost.part").unlink()  # its name says that items are missing
    with UnbufferedFileFeedStorage(str(tmp_path / "own")).open(Spider("any")) as file:
        exporter = PartCsvItemExporter(file)  # type: ignore[arg-type]
        exporter.export_item({"a": 1})
        exporter.export_item({"b": 1})
    assert "columns" not in (tmp_path / "own").read_text()


class SyncedBefore(io.FileIO):
    """A file whose thread makes an fsync just before each write."""

    _syncing: Any = None

    def write(self, data: Any) -> int:
        self._syncing.written = False
        return super().write(data)


def test_a_write_just_after_an_fsync_is_synced_too(tmp_path: Path) -> None:
    """Whenever the thread was at work, it knows that something was written since."""
    file = type("Synced", (_Whole, SyncedBefore), {})(str(tmp_path / "items"), "ab")
    file.write(b"an item")
    assert file._syncing.written
    file.close()


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_feed_that_its_folder_keeps_for_another_user_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """In a folder as /tmp nobody else can replace it, as joining does, after the whole crawl."""
    target = tmp_path / "shared" / "items.jsonl"
    target.parent.mkdir()
    target.parent.chmod(mode)
    crawler = Crawler(Spider, {"FEEDS": {str(target): {"format": "jsonlines", "overwrite": True}}})
    crawler.spider = Spider("any")
    assert plan_feeds(crawler)
    target.touch()
    assert plan_feeds(crawler)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    if mode & stat.S_ISVTX:
        with pytest.raises(CrewError, match=r"items\.jsonl belongs to another user.*choose another file"):
            plan_feeds(crawler)
    else:
        assert plan_feeds(crawler)
