"""Files of exports: a whole file is read. A truncated, edited or other file is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from exports.test_lines import HEADER
from scrapy_dq.exports.files import BadExport, ExportFile, ExportWriter, created
from scrapy_dq.frontier.archive.parts import Part
from scrapy_dq.frontier.records import Entry

PARTS = [
    Part("seen", 0, [(b"%020d" % n,) for n in range(50)]),
    Part("waiting", 0, [Entry("waiting", b"%012d" % n, b"shop.example", b"payload") for n in range(50)]),
    Part("dead", 2, [Entry("dead", b"x" * 12, b"shop.example", b"payload", 1, -4, 9, reason="why")]),
]


def written(path: Path, parts: Sequence[Part] = PARTS) -> Path:
    with created(str(path)) as file:
        writer = ExportWriter(file, HEADER)
        for part in parts:
            writer.write(part)
        writer.end()
    assert (writer.entries, writer.tokens) == (48 + len(parts), 50)
    return path


def parts_of(file: ExportFile) -> list[Part]:
    async def read() -> list[Part]:
        return [part async for part in file.parts()]

    return asyncio.run(read())


@pytest.mark.parametrize("name", ["books.jsonl", "books.jsonl.zst"])
def test_a_written_file_can_be_read(tmp_path: Path, name: str) -> None:
    """A file whose name ends in .zst is compressed."""
    path = written(tmp_path / name)
    file = ExportFile(str(path))
    assert file.header == HEADER
    assert parts_of(file) == PARTS
    assert path.read_bytes().startswith(b"{" if name.endswith("l") else b"\x28\xb5\x2f\xfd")
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["books.jsonl", "books.jsonl.zst"])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str) -> None:
    whole = written(tmp_path / name).read_bytes()
    cut = tmp_path / f"cut.{name}"
    for size in [*range(0, len(whole) - 1, 7), len(whole) - 2]:
        cut.write_bytes(whole[:size])
        with pytest.raises(BadExport, match=r"is empty|was cut|cannot be read|not an export"):
            ExportFile(str(cut))


def test_a_file_that_was_edited_is_refused(tmp_path: Path) -> None:
    """In the edited files, lines are missing, repeated, exchanged, changed, or added at the end."""
    path = written(tmp_path / "books.jsonl")
    header, seen, waits, dead, end = path.read_bytes().splitlines(keepends=True)
    for lines in (
        [header, waits, seen, dead, end], [header, seen, waits, end], [header, seen, seen, waits, dead, end],
        [header, seen, waits.replace(b"shop", b"shoq"), dead, end], [header.replace(b"books", b"other"), end],
        [header.replace(b'"run": 2', b'"run": 3'), seen, waits, dead, end],
        [header, seen, waits, dead, dead, end],
    ):  # fmt: skip
        path.write_bytes(b"".join(lines))
        with pytest.raises(BadExport, match="was edited, or damaged"):
            ExportFile(str(path))
    path.write_bytes(b"".join((header, seen, waits, dead, end, dead)))
    with pytest.raises(BadExport, match="its last line is missing"):
        ExportFile(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"http://example.com/\n", "not an export of scrapy_dq"),
        (b'{"url": "http://example.com/"}\n', "not an export of scrapy_dq"),
        (b"5\n", "not an export of scrapy_dq"),
        (b"\0" * 1000, "not an export of scrapy_dq"),
        (b"[" * 100_000, "not an export of scrapy_dq"),
    ],
)
def test_a_file_that_is_not_an_export_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BadExport, match=message):
        ExportFile(str(path))


def test_a_file_that_changes_after_it_was_checked_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "x")
    file, whole = ExportFile(str(path)), path.read_bytes()
    for changed in (b"", whole[:200], whole.replace(b"shop", b"shoq"), whole.replace(b"cGF5", b"cGF6")):
        path.write_bytes(changed)
        with pytest.raises(BadExport, match=r"is empty|was cut|was edited|is no part"):
            parts_of(file)
    path.unlink()
    written(path, PARTS[:2])
    with pytest.raises(BadExport, match="has changed since this import began"):
        parts_of(file)
    path.write_bytes(whole)
    assert parts_of(file) == PARTS


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """An import reads its file twice, but a pipe can only be read once."""
    os.mkfifo(tmp_path / "x")
    with pytest.raises(BadExport, match="it is not a regular file, and an import reads the file twice"):
        ExportFile(str(tmp_path / "x"))


def test_no_file_is_overwritten_and_no_partial_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(BadExport, match="exists: choose another name"), created(str(path)):
        pass
    with pytest.raises(UnicodeEncodeError), created(str(tmp_path / "y")) as file:
        file.write(b"half" + "é".encode("ascii"))
    with pytest.raises(BadExport, match="cannot be written"), created(str(tmp_path / "no/y")):
        pass
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "mine"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "x", tmp_path):
        with pytest.raises(BadExport, match="cannot be read"):
            ExportFile(str(path))
