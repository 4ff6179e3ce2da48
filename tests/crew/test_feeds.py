"""The feed storage of workers: what is written is whole, whatever the disk does."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.exporters import CsvItemExporter, JsonItemExporter, JsonLinesItemExporter

from scrapy_dq.crew.formats import JOINERS, Sources
from scrapy_dq.feeds import UnbufferedFileFeedStorage

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
