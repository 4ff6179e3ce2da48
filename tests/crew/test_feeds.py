"""The workers' feed storage writes whole items, even if the disk is full or fails."""

from __future__ import annotations

import errno
import os
import resource
import signal
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
from scrapy import Spider
from scrapy.exporters import JsonLinesItemExporter

from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage
from support.waiting import LONGEST_S, wait_until


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let files grow to at most *size* bytes, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_an_item_that_finds_no_room_leaves_no_partial_line(tmp_path: Path) -> None:
    """The write raises an error. A part of an item would spoil the items that are written after it."""
    feed = tmp_path / "feed.jsonl"
    file: Any = UnbufferedFileFeedStorage(str(feed)).open(Spider("any"))
    exporter = JsonLinesItemExporter(file)
    exporter.export_item({"text": "first"})
    with room_for(feed.stat().st_size + 50), pytest.raises(OSError, match="File too large"):
        exporter.export_item({"text": '"' + "x" * 100})
    exporter.export_item({"text": "last"})
    file.close()
    assert feed.read_text() == '{"text": "first"}\n{"text": "last"}\n'


def test_a_feed_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    """A pipe cannot be cut back to its last whole item, but writing still works."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file: Any = UnbufferedFileFeedStorage(str(tmp_path / "pipe")).open(Spider("any"))
    with file:
        JsonLinesItemExporter(file).export_item({"text": "first"})
    assert os.read(reader, 100) == b'{"text": "first"}\n'
    os.close(reader)


def test_items_are_on_the_disk_within_about_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that does not run the event loop calls fsync at most once a second, and at the end."""
    synced: list[tuple[int, int, float]] = []
    real = os.fsync
    path = tmp_path / "feed.jsonl"

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        real(descriptor)
        if os.path.samestat(found, path.stat()):  # another test's file may also be synced now
            synced.append((threading.get_ident(), found.st_size, time.monotonic()))

    monkeypatch.setattr(os, "fsync", fsync)
    file: Any = UnbufferedFileFeedStorage(str(path)).open(Spider("any"))
    exporter = JsonLinesItemExporter(file)
    began = time.monotonic()
    while len(synced) < 2:
        exporter.export_item({"text": "often"})
        time.sleep(0.001)
        assert time.monotonic() < began + 30
    wait_until(lambda: synced[-1][1] == path.stat().st_size, "all items are synced")
    for before, after in pairwise([began, *(at for *_, at in synced)]):
        assert after - before >= 0.9
    quiet = len(synced)
    time.sleep(2.2)
    # One more fsync is allowed, because an item may be written between an fsync and the next check.
    assert len(synced) <= quiet + 1, "no fsync is needed if nothing was written"
    exporter.export_item({"text": "last"})
    file.close()
    wait_until(lambda: "scrapy-dq-feed" not in {t.name for t in threading.enumerate()}, "the thread ends")
    assert synced[-1][1] == path.stat().st_size, "the last item must be synced"
    assert len(synced) <= quiet + 2, "one fsync at the end is enough"
    assert threading.get_ident() not in {thread for thread, *_ in synced}


def test_a_disk_that_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage continues to write items, and no thread ends with a traceback."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    file: Any = UnbufferedFileFeedStorage(str(tmp_path / "feed.jsonl")).open(Spider("any"))
    file.write(b"an item\n")
    file.close()
    wait_until(lambda: "feed.jsonl is not synced to the disk: [Errno 5]" in caplog.text, "a warning")


@pytest.mark.parametrize("closes", [True, False])
def test_a_process_ends_when_its_feed_is_on_the_disk(closes: bool, tmp_path: Path) -> None:
    """A process syncs its feed even without closing the feed. A file that cannot be synced is no error."""
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
