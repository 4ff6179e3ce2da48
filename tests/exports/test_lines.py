"""Lines of an export: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dq.exports.lines import BadLine, header_line, header_of, part_line, part_of
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import Header, Part
from scrapy_dq.frontier.model import Limits, Order, Seen
from scrapy_dq.frontier.wire import pack_limits

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
texts = st.binary(max_size=20)
attempts = st.integers(0, 127)
ITEMS = {
    parts.SEEDS: st.tuples(payloads),
    parts.ADMITTED: st.tuples(payloads),
    parts.ADOPTED: st.tuples(payloads),
    parts.LIMITS: st.tuples(names, st.sampled_from(["500:2", ":1", "0:", "5:1:7", "::9"])),
    parts.BLOCKED: st.tuples(sizes, names),
    parts.WAITING: st.tuples(ranks, sizes, ids, payloads),
    parts.RETURNED: st.tuples(names, ranks, sizes, ids, attempts, payloads),
    parts.QUARANTINE: st.tuples(names, ranks, sizes, ids, attempts, payloads),
    parts.DELAYED: st.tuples(sizes, ranks, names, ids, payloads),
    parts.FAILED: st.tuples(ids, texts, texts, sizes, texts, sizes, ranks, sizes, payloads, names),
    parts.DEAD: st.tuples(ids, texts, sizes, texts, sizes, ranks, sizes, payloads, names),
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
    items = data.draw(st.lists(SEEN[seen] if kind == parts.SEEN else ITEMS[kind], max_size=5))
    partition = data.draw(names) if kind == parts.WAITING else b""
    part = Part(kind, shard, items, partition)
    line = part_line(part, seen)
    assert line.isascii()
    assert part_of(json.loads(line), of(seen)) == part


def test_a_header_is_read_as_it_was_written() -> None:
    assert header_of(json.loads(header_line(HEADER, "1.2"))) == (HEADER, "1.2")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(), Limits(delay_s=1.5, concurrency=3, own={"a": (None, 2), "b": (0.5, None)}),
        Limits(budget=10), Limits(budget=10, daily=True), Limits(own_budgets={"a": 7}), Limits(daily=True),
    ],
)  # fmt: skip
def test_limits_and_budgets_of_the_settings_are_read_as_they_were_written(limits: Limits) -> None:
    kept = {"limits_set": pack_limits(limits)}
    header = Header(**{**vars(HEADER), "kept": kept})
    assert header_of(json.loads(header_line(header, "1.2"))) == (header, "1.2")


@pytest.mark.parametrize(
    "packed",
    [[5], [5, 3, {}], [5, 1, {b"a": -1}], [5, 1, {1: 1}], [-5, 1, {}]],
)  # fmt: skip
def test_budgets_that_no_script_could_read_are_refused(packed: list[Any]) -> None:
    line = header_line(
        Header(**{**vars(HEADER), "kept": {"limits_set": msgpack.packb([0, 0, [], *packed])}}), "1"
    )
    with pytest.raises(BadLine, match="its first line was edited"):
        header_of(json.loads(line))


def test_a_file_of_a_later_format_is_refused_with_its_version() -> None:
    line = json.loads(header_line(HEADER, "9.9")) | {"scrapy_dq_export": 2}
    with pytest.raises(BadLine, match=r"written by scrapy_dq '9.9', in format '2': this version reads"):
        header_of(line)


@pytest.mark.parametrize(
    "change",
    [
        {"order": "random"}, {"seen": 1}, {"shards": 0}, {"shards": 2000}, {"sequence": -1}, {"run": 1.5},
        {"id": "x"}, {"crawl": 5}, {"spider": "a\nb"}, {"kept": []}, {"kept": {"starts": "?"}},
        {"done": None},
        {"kept": {"limits_set": "kw=="}}, {"kept": {"starts": "AAAA" * 100_000}},
        {"kept": {"events": "eA=="}}, {"seen_since_ms": "x"},
    ],
)  # fmt: skip
def test_a_header_that_was_edited_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadLine, match="its first line was edited"):
        header_of(json.loads(header_line(HEADER, "1")) | change)


@pytest.mark.parametrize("line", [None, [], 5, {}, {"waiting": []}])
def test_what_is_no_header_is_refused(line: Any) -> None:
    with pytest.raises(BadLine, match="not an export of scrapy_dq"):
        header_of(line)


WAITS = ["AAAAAAAAAAAAAAAA", "cGF5"]


@pytest.mark.parametrize(
    "line",
    [
        None, [], 7, {}, {"unknown": []}, {"end": {}}, {"waiting": [[0, 1, *WAITS]]},
        {"waiting": 5, "partition": "h"},
        {"waiting": [[0, 1, *WAITS]], "partition": "a\nb"},
        {"waiting": [[0, 1, *WAITS]], "partition": "h" * 600},
        {"waiting": [[0, 1, *WAITS, 1]], "partition": "h"}, {"waiting": [[0, 1]], "partition": "h"},
        {"waiting": [[0.5, 1, *WAITS]], "partition": "h"}, {"waiting": [[True, 1, *WAITS]], "partition": "h"},
        {"waiting": [[2**60, 1, *WAITS]], "partition": "h"}, {"waiting": [[0, -1, *WAITS]], "partition": "h"},
        {"waiting": [[0, 1, "AAAA", "cGF5"]], "partition": "h"},
        {"waiting": [[0, 1, WAITS[0], "?"]], "partition": "h"},
        {"waiting": [[0, 1, *WAITS]], "partition": "h", "shard": 3}, {"seen": [5]}, {"seen": ["*"]},
        {"returned": [["h", 0, 1, WAITS[0], 128, "cGF5"]]}, {"limits": [["h", "x"]]},
        {"limits": [["h", "1:2:3:4"]]},
        {"blocked": [["h", 5]]}, {"dead": [[WAITS[0], 5, 0, "w", 0, 0, 1, "cGF5", "h"]]},
    ],
)  # fmt: skip
def test_a_line_that_is_no_part_is_refused(line: Any) -> None:
    with pytest.raises(BadLine, match="it is no part of a crawl"):
        part_of(line, HEADER)


@pytest.mark.parametrize("member", ["", "5", "9000000000000000000", "1" * 20, "12345678901234567 8"])
def test_what_is_in_no_bucket_is_refused(member: str) -> None:
    """Redis would store it in another form, as a larger set."""
    with pytest.raises(BadLine, match="is not in any bucket"):
        part_of({"seen": [[1, member]]}, of(Seen.COMPACT))
