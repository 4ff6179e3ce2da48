"""Parts of JSON Lines, CSV and JSON become one feed; torn records are left out."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds import sources
from scrapy_dq.crew.feeds.formats import AMBIGUOUS, JOINERS, ONE_BYTE, SEVERAL_BYTES, unjoinable, unreadable
from scrapy_dq.crew.feeds.sources import Sources

JoinText = Callable[..., str]
Text = str | bytes


@pytest.fixture(autouse=True, params=[1 << 20, 3])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as much at once as usual, and so little that everything is cut everywhere."""
    monkeypatch.setattr(sources, "CHUNK", request.param)


@pytest.fixture
def join(tmp_path: Path) -> JoinText:
    """Return a function that joins parts, given as text or bytes, and returns what comes out."""

    def do(kind: str, *parts: Text, before: Text | None = None, count: int | None = None, **more: Any) -> str:
        return joined(tmp_path, kind, parts, before, count, more)

    return do


def joined(
    folder: Path, kind: str, parts: Sequence[Text], before: Text | None, count: int | None, more: Any
) -> str:
    paths = []
    for number, part in enumerate(parts):
        paths.append(folder / f"{number}.part")
        paths[-1].write_bytes(part.encode() if isinstance(part, str) else part)
    old = None
    if before is not None:
        old = folder / "before"
        old.write_bytes(before.encode() if isinstance(before, str) else before)
    sizes: list[int] = []
    out = io.BytesIO()
    items = JOINERS[kind](out, Sources(old, paths, {"format": kind} | more, sizes.append))
    assert count is None or items == count
    assert sum(sizes) == sum(path.stat().st_size for path in [*paths, *([old] if old else [])])
    return out.getvalue().decode(more.get("encoding") or "utf-8")


def test_lines_are_joined_and_torn_ones_left_out(join: JoinText) -> None:
    """What was there before is kept as it is, and gets the end of line that it lacks."""
    assert join("jsonlines", '{"a":1}\n{"a":', "", '{"a":2}\r\n', count=2) == '{"a":1}\n{"a":2}\r\n'
    assert join("jsonlines", '{"a":1}\n', before='{"b":1}\n') == '{"b":1}\n{"a":1}\n'
    assert join("jsonlines", '{"a":1}\n', before='{"b":', count=1) == '{"b":\n{"a":1}\n'
    assert join("jsonlines", '"é\r€\x85\u2028"\n', '"é'.encode()[:-1]) == '"é\r€\x85\u2028"\n'
    assert join("jsonlines", "", before="") == ""


def test_an_item_with_very_many_fields_takes_no_longer_than_its_size(tmp_path: Path) -> None:
    """A page may choose them. Eight times as many take some eight times as long, not sixty-four times."""

    def cost(fields: int) -> float:
        header = ",".join(f"n{n}" for n in range(fields)) + "\r\n"
        texts = (header, header.replace("n0,", "other,"))
        began = time.thread_time()
        joined(tmp_path, "csv", texts, None, None, {})
        return time.thread_time() - began

    assert min(cost(16_000) for _ in range(3)) < 24 * max(cost(2_000) for _ in range(3))


def test_a_field_of_very_many_lines_takes_no_longer_than_as_many_rows(tmp_path: Path) -> None:
    """A page may be all line ends: a megabyte of them, which gzip makes a kilobyte of."""

    def cost(begin: str, end: str, lines: int = 400_000) -> float:
        began = time.thread_time()
        joined(tmp_path, "csv", [f"text\r\n{begin}" + "x\n" * lines + f"{end}\r\n"], None, None, {})
        return time.thread_time() - began

    assert min(cost('"', '"') for _ in range(2)) < max(cost("", "") for _ in range(2))


def test_a_carriage_return_ends_no_row_of_another_terminator(join: JoinText) -> None:
    """Python's writer does not quote it then: a page could add rows."""
    kwargs = {"lineterminator": "\n"}
    found = join("csv", "a,b\n1,2\n", "c,b\nx,y\rhttp://forged/,z\n", item_export_kwargs=kwargs)
    assert found == "a,b,c\n1,2,\n,y\rhttp://forged/,x,z\n"


def test_a_text_with_all_characters_for_private_use_comes_back(join: JoinText) -> None:
    """Two of them stand for its CR meanwhile: a page must not keep a feed from being joined."""
    text = "\r\ue000\r\ue000\ue001\ue000\ue002\r" + "".join(map(chr, range(0xE000, 0x110000)))
    found = join("csv", "a,b\n1,2\n", f"c,b\nx,{text}\n", item_export_kwargs={"lineterminator": "\n"})
    assert found == f"a,b,c\n1,2,\n,{text},x\n"


def test_csv_has_one_header_and_no_torn_row(join: JoinText) -> None:
    """Line ends and quotes within a field end no row."""
    one = 'id,text\r\n1,"two\r\nlines, ""quoted"""\r\n2,"to'
    two = "id,text\r\n3,x\r\n4,y\r"
    rows = 'id,text\r\n1,"two\r\nlines, ""quoted"""\r\n3,x\r\n'
    assert join("csv", one, two, "id,te", count=2) == rows
    assert join("csv", two, before=rows, count=1) == rows + "3,x\r\n"
    assert join("csv", two, before="id,text\r\n0,z") == "id,text\r\n0,z\r\n3,x\r\n"
    assert join("csv", two, before="") == "id,text\r\n3,x\r\n"
    assert join("csv", "") == ""


def test_csv_headers_that_differ_become_one(join: JoinText) -> None:
    """With every column, in order of appearance; rows are filled by name."""
    found = join(
        "csv", "a,b\r\n1,2\r\n", "c,a\r\n3,4\r\n", "b,a,b\r\n5,6,7\r\n", before="b\r\n0\r\n", count=3
    )
    assert list(csv.reader(io.StringIO(found))) == [
        ["b", "a", "c", "b"], ["0", "", "", ""], ["2", "1", "", ""], ["", "4", "3", ""], ["5", "6", "", "7"]
    ]  # fmt: skip


def test_csv_columns_may_change_within_a_part(join: JoinText) -> None:
    """A marked header says from where on; a torn one is left out. What only looks like one is a row."""
    one = 'a\r\n1\r\n""+columns+a,"b\r\n"\r\n2,3\r\n""+colu'
    two = 'a\r\n"\r\n""""+columns+x\r\n"\r\n'
    found = join("csv", one, two, "c\r\n", before="a\r\n0\r\n", count=3)
    assert list(csv.reader(io.StringIO(found, newline=""))) == [
        ["a", "b\r\n", "c"], ["0", "", ""], ["1", "", ""], ["2", "3", ""], ['\r\n""+columns+x\r\n', "", ""]
    ]  # fmt: skip
    # Nothing of the user's own file is treated as ours.
    assert join("csv", "a\r\n", before='a\r\n""+columns+b\r\n') == 'a\r\n""+columns+b\r\n'


def test_what_was_there_before_is_kept_whatever_it_is(join: JoinText) -> None:
    """Rows that Scrapy would not have written so, values beyond the header, arrays in arrays."""
    before = 'a,b\r\n5" pipe,3\r\n6,7\r\n1,2,more\r\n'
    found = join("csv", "a,b,c\r\n8,9,0\r\n", before=before)
    assert list(csv.reader(io.StringIO(found))) == [
        ["a", "b", "c"], ['5" pipe', "3", ""], ["6", "7", ""], ["1", "2", "", "more"], ["8", "9", "0"]
    ]  # fmt: skip
    assert json.loads(join("json", '[\n{"a": 1}', before="[[1, [2]], []]")) == [[1, [2]], [], {"a": 1}]
    for kind, bad in (("json", b'["\xe9"]'), ("csv", b"a,b\r\n\xe9,1\r\n")):
        with pytest.raises(UnicodeError):
            join(kind, '[{"b": 1}]' if kind == "json" else "c\r\n1\r\n", before=bad)


def test_a_long_text_is_a_field_like_any_other(join: JoinText) -> None:
    """Also in a part whose columns have to be put in order."""
    long = "x" * 200_000
    assert join("csv", "a,b\r\n1,2\r\n", f"b,a\r\n{long},3\r\n") == f"a,b\r\n1,2\r\n3,{long}\r\n"


def test_csv_of_other_dialects_and_encodings(join: JoinText) -> None:
    """As the feed's item_export_kwargs and encoding say."""
    kwargs = {"delimiter": ";", "quotechar": "'", "lineterminator": "\n"}
    found = join("csv", "a;b\n'1;\n';2\n", 'b;a\n3;"\n', item_export_kwargs=kwargs)
    assert found == "a;b\n'1;\n';2\n\";3\n"
    bare = {"include_headers_line": False}
    assert join("csv", "1,2\r\n", "3,4\r\n", item_export_kwargs=bare, count=2) == "1,2\r\n3,4\r\n"
    parts = ["é,b\r\n1,2\r\n".encode("utf-8-sig"), "b,é\r\n3,4\r\n".encode("utf-8-sig")]
    assert join("csv", *parts, encoding="utf-8-sig") == "é,b\r\n1,2\r\n4,3\r\n"
    assert join("csv", "é\r\n1\r\n".encode("latin-1"), encoding="latin-1") == "é\r\n1\r\n"


def test_json_arrays_become_one(join: JoinText) -> None:
    """Torn ones too; what was there before is read as what Scrapy's own -o would have left."""
    torn = '[\n{"a": "][,\\""},\n{"a": [1, {"b": 2}]},\n{"a": "tor'
    found = join("json", torn, "[\n\n]", '[{"a": "é"}]', before='[\n{"b": 1}\n][\n{"b": 2}\n]', count=3)
    assert json.loads(found) == [{"b": 1}, {"b": 2}, {"a": '][,"'}, {"a": [1, {"b": 2}]}, {"a": "é"}]
    assert join("json", "[\n\n]") == "[\n]"
    assert json.loads(join("json", '[\n    {\n        "a": 1\n    }\n]', "[", count=1)) == [{"a": 1}]
    digits = f"[{'9' * 5_000}, 1e999]"
    assert join("json", "[1]", before=digits) == "[\n" + digits[1:-1].replace(", ", ",\n") + ",\n1\n]"
    with pytest.raises(CrewError, match="is not valid JSON from here on: 'nonsense'"):
        join("json", "[]", before="nonsense")


@pytest.mark.parametrize(
    "part",
    [
        '[\n{"a": 1},\n{"a": "\\x, and more"},\n{"a": 3}\n]',
        '[\n{"a": 1},\n{"a": "tor\n{"a": 3},\n{"a": 4}\n]',
        '[\n{"a": 1},\n{"a" 2},\n{"a": 3},\n{"a": 4}\n]',
    ],
)
def test_a_part_that_is_invalid_in_the_middle_is_not_cut_there(join: JoinText, part: str) -> None:
    """What comes after it would be lost without a word; only the last record of a part can be torn."""
    with pytest.raises(CrewError, match="is not valid JSON from here on"):
        join("json", part)


@pytest.mark.parametrize("end", ["", "\0" * 4096])
def test_a_part_may_end_anywhere(join: JoinText, end: str) -> None:
    """Also in zeros that a power loss left."""
    record = {"a": "\U0001f600\n", "b": [True, None, -1.5e10]}
    for text in (json.dumps(record), json.dumps(record, indent=20)):
        for cut in range(len(text)):
            assert json.loads(join("json", f"[\n[1],\n{text[:cut]}{end}", count=1)) == [[1]]


def test_the_bytes_of_listed_encodings_are_plain() -> None:
    """No part of a character is the byte of a quote or a line end; and JSON's escapes come back."""
    text = "".join(map(chr, range(128)))
    others = "".join(map(chr, [*range(128, 0xD800), *range(0xE000, 0x20000)]))
    for name in sorted(ONE_BYTE | SEVERAL_BYTES | AMBIGUOUS):
        assert text.encode(name) == text.encode(), name
        code = others.encode(name, "ignore")
        assert min(code, default=0x80) >= (0x80 if name in ONE_BYTE else 0x30), name
        if name not in AMBIGUOUS:
            assert min(map(ord, code.decode(name)), default=0x80) >= 0x80, name


# Python's csv knows no zero byte before 3.11: Scrapy itself cannot write one there.
ZERO = "" if sys.version_info >= (3, 11) else "\0"
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters=ZERO), max_size=4)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.dictionaries(st.sampled_from("abc"), TEXTS), max_size=4), max_size=3),
    st.data(),
)
def test_any_items_come_back(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[dict[str, str]]], data: st.DataObject
) -> None:
    """Whatever the text, in each format; of a part that is cut anywhere, all records before the cut."""
    folder = tmp_path_factory.mktemp("join")
    whole = [item for part in parts for item in part]
    lines = ["".join(json.dumps(item) + "\n" for item in part) for part in parts]
    arrays = ["[\n" + ",\n".join(map(json.dumps, part)) + "\n]" for part in parts]
    tables = []
    for part in parts:
        table = io.StringIO(newline="")
        rows = csv.DictWriter(table, ["a", "b", "c"], restval="")
        rows.writeheader()
        rows.writerows(part)
        tables.append(table.getvalue())

    def items(kind: str, parts: list[str]) -> list[dict[str, str]]:
        found = joined(folder, kind, parts, None, None, {})
        if kind == "csv":
            return list(csv.DictReader(io.StringIO(found, newline="")))
        return json.loads(found) if kind == "json" else [json.loads(line) for line in found.splitlines()]

    filled = [{"a": "", "b": "", "c": ""} | item for item in whole]
    for kind, texts, expected in (
        ("jsonlines", lines, whole),
        ("json", arrays, whole),
        ("csv", tables, filled),
    ):
        assert items(kind, texts) == expected
        if texts:
            *before, last = texts
            cut = last[: data.draw(st.integers(0, len(last)), label=f"cut of {kind}")]
            found = items(kind, [*before, cut])
            assert found == expected[: len(found)]
            assert len(found) >= len(whole) - len(parts[-1])


@pytest.mark.parametrize(
    ("kind", "before", "fine"),
    [
        ("json", b'\xef\xbb\xbf [\n{"a": 1}\n]\n', True),
        ("json", b'[\n{"a": 1}', True),
        ("json", b" \n", True),
        ("json", b'{"a": 1}', False),
        ("json", b'[1] and more', False),
        ("csv", b"", True),
        ("csv", "é,b\n".encode() + b"\xe9", True),
        ("csv", b"\xe9,b\n", False),
        ("jsonlines", b"\xe9", True),
    ],
)  # fmt: skip
def test_what_nothing_can_be_appended_to_is_known_before(
    tmp_path: Path, join: JoinText, kind: str, before: bytes, fine: bool
) -> None:
    """By its first and last bytes; what a kill has cut short can be joined with."""
    (tmp_path / "old").write_bytes(before)
    assert bool(unreadable(tmp_path / "old", {"format": kind})) != fine
    if kind == "json" and fine:
        json.loads(join(kind, "[2]", before=before, encoding="utf-8-sig"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format": "xml"}, "format 'xml'"),
        ({"format": "jsonlines", "postprocessing": ["gzip"]}, "postprocessed"),
        ({"format": "jsonlines", "encoding": "utf-16"}, "encoding 'utf-16'"),
        ({"format": "json", "encoding": "euc_jp"}, "encoding 'euc_jp'"),
        ({"format": "json", "encoding": "Shift-JIS"}, "encoding 'Shift-JIS'"),
        ({"format": "csv", "encoding": "Shift-JIS"}, ""),
        ({"format": "jsonl", "encoding": "Shift-JIS"}, ""),
        ({"format": "csv", "encoding": "cp932", "item_export_kwargs": {"quotechar": "|"}}, "'cp932'"),
        ({"format": "csv", "encoding": "cp1252", "item_export_kwargs": {"quotechar": "|"}}, ""),
        ({"format": "csv", "encoding": "iso2022_jp"}, "encoding 'iso2022_jp'"),
        ({"format": "csv", "encoding": "hz"}, "encoding 'hz'"),
        ({"format": "jsonlines", "encoding": "idna"}, "encoding 'idna'"),
        ({"format": "json", "encoding": "utf-7"}, "encoding 'utf-7'"),
        ({"format": "json", "encoding": "GBK"}, ""),
        ({"format": "json", "encoding": "latin1"}, ""),
        ({"format": "csv", "encoding": "nonsense"}, "encoding 'nonsense'"),
        ({"format": "csv", "item_export_kwargs": {"quoting": csv.QUOTE_NONE, "escapechar": "\\"}}, "dialect"),
        ({"format": "csv", "item_export_kwargs": {"lineterminator": "|"}}, "dialect"),
        ({"format": "csv", "encoding": "utf-8-sig", "item_export_kwargs": {"delimiter": ";"}}, ""),
    ],
)
def test_what_cannot_be_joined_is_known_before(options: dict[str, Any], why: str) -> None:
    """By the feed's options alone."""
    assert why in unjoinable(options)
    assert bool(why) == bool(unjoinable(options))
