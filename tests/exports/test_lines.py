"""The lines of an export file: a line that was written can be read again; other lines are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dq.exports.lines import BadLine, header_line, header_of, part_line, part_of
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import Header, Part
from scrapy_dq.frontier.model import Order, Seen
from scrapy_dq.frontier.records import DEAD, DELAYED, FAILED, QUARANTINE, RETURNED, WAITING, Entry

HEADER = Header(
    id="0123456789abcdef" * 2, crawl="books", at_ms=1_700_000_000_000, order=Order.LIFO, seen=Seen.EXACT,
    shards=3,
    partition_by="slot", fingerprinter="scrapy.F", spider="books.S", run=2, sequence=99, done=5,
    failed=4, gone=0, seen_since_ms=0, entries=7, tokens=8,
    kept={"starts": b"\x80", "limits_set": b"\x93\xcd\x03\xe8\x00\x93\xa1x\xc2\x05", "events": b"12"},
)  # fmt: skip

sizes = st.integers(0, 2**50)
ranks = st.integers(-(2**50), 2**50)
payloads = st.binary(max_size=50)
ids = st.binary(min_size=12, max_size=12)
names = st.sampled_from([b"", b"\1", b"shop.example", "a {slot}: é".encode()])
texts = st.binary(max_size=20).map(lambda text: text.decode("utf-8", "surrogateescape"))
FIELDS = {
    "entry_id": ids, "partition": names, "payload": payloads, "attempts": st.integers(0, 127), "rank": ranks,
    "sequence": sizes, "due_ms": sizes, "at_ms": sizes, "worker_id": texts, "reason": texts, "label": texts,
}  # fmt: skip


def entries(kind: str, *fields: str) -> st.SearchStrategy[Entry]:
    """Return a strategy of entries of *kind* that have only these fields."""
    return st.fixed_dictionaries({name: FIELDS[name] for name in fields}).map(lambda of: Entry(kind, **of))


COMMON = ("entry_id", "partition", "payload", "rank")
ENDED = (*COMMON, "sequence", "attempts", "at_ms", "worker_id", "reason")
ITEMS = {
    parts.SEEDS: st.tuples(payloads),
    parts.ADMITTED: st.tuples(payloads),
    parts.ADOPTED: st.tuples(payloads),
    parts.LIMITS: st.tuples(names, st.sampled_from([b"500:2", b":1", b"0:", b"5:1:7", b"::9"])),
    parts.BLOCKED: st.tuples(sizes, names),
    WAITING: entries(WAITING, *COMMON, "sequence"),
    RETURNED: entries(RETURNED, *COMMON, "sequence", "attempts"),
    QUARANTINE: entries(QUARANTINE, *COMMON, "sequence", "attempts"),
    DELAYED: entries(DELAYED, *COMMON, "due_ms"),
    FAILED: entries(FAILED, *ENDED, "label"),
    DEAD: entries(DEAD, *ENDED),
}
SEEN = {
    Seen.EXACT: st.tuples(payloads),
    Seen.EXPIRING: st.tuples(sizes, payloads),
    Seen.COMPACT: st.tuples(
        st.integers(0, 1023), st.sampled_from([b"-1000000000000000000", b"8999999999999999999"])
    ),
}


def of(seen: Seen) -> Header:
    return Header(**{**vars(HEADER), "seen": seen})


@given(st.data(), st.sampled_from(parts.KINDS), st.sampled_from(list(Seen)), st.integers(0, 2))
def test_a_part_is_read_as_it_was_written(data: st.DataObject, kind: str, seen: Seen, shard: int) -> None:
    """Reading a line gives the part that was written, for each kind of part and of `seen`."""
    items = data.draw(st.lists(SEEN[seen] if kind == parts.SEEN else ITEMS[kind], min_size=1, max_size=5))
    if kind == WAITING:
        items = [each._replace(partition=items[0].partition) for each in items]
    part = Part(kind, shard, items)
    line = part_line(part, seen)
    assert line.isascii()
    assert part_of(json.loads(line), of(seen)) == part


def test_a_header_is_read_as_it_was_written() -> None:
    """Reading the first line gives the header that was written."""
    assert header_of(json.loads(header_line(HEADER, "1.2"))) == HEADER


def test_a_file_of_a_later_format_is_refused_with_its_version() -> None:
    """The error names the version that wrote the file, and the formats."""
    line = json.loads(header_line(HEADER, "9.9")) | {"scrapy_dq_export": 2}
    with pytest.raises(BadLine, match=r"written by scrapy_dq '9.9', in format '2': this version reads"):
        header_of(line)


@pytest.mark.parametrize(
    "change", [{"order": "random"}, {"seen": 1}, {"kept": []}, {"kept": {"starts": "?"}}]
)
def test_a_header_that_was_edited_is_refused(change: dict[str, Any]) -> None:
    """Each value of the first line is checked, because a user could have edited the file."""
    with pytest.raises(BadLine, match="its first line was edited"):
        header_of(json.loads(header_line(HEADER, "1")) | change)


WAITS = [0, 1, "AAAAAAAAAAAAAAAA", "cGF5"]


@pytest.mark.parametrize(
    "line",
    [
        None, [], 7, {}, {"unknown": []}, {"end": {}}, {"waiting": 5, "partition": "h"},
        {"waiting": [[*WAITS, 1]], "partition": "h"}, {"waiting": [WAITS[:2]], "partition": "h"},
        {"waiting": [[*WAITS[:3], "?"]], "partition": "h"}, {"seen": [5]}, {"seen": ["*"]},
        {"blocked": [["h", 5]]},
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_part_of_a_crawl_is_refused(line: Any) -> None:
    """A line with an unknown name, or with items of another shape, raises BadLine and nothing else."""
    with pytest.raises(BadLine, match="it is not a part of a crawl"):
        part_of(line, HEADER)
