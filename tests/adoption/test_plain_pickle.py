"""Pickles as plain data: what scrapy-redis writes comes back; what runs code, or grows, is stopped."""

from __future__ import annotations

import builtins
import datetime
import decimal
import itertools
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_dq.adoption.plain_pickle import NotPlain, loads

MAX_BYTES = 1_048_576
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = scalars | st.tuples(scalars, scalars)
values = st.recursive(
    scalars | st.sets(keys) | st.frozensets(keys),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


def read(pickled: bytes) -> Any:
    return loads(pickled, MAX_BYTES)


@settings(max_examples=50)
@given(values, st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    """With every protocol, as `pickle` itself reads it, types included."""
    pickled = pickle.dumps(value, protocol)
    assert read(pickled) == pickle.loads(pickled)
    assert repr(read(pickled)) == repr(pickle.loads(pickled))


def test_what_occurs_twice_comes_back_as_one() -> None:
    """As `pickle` has it: a list that occurs in two places stays one list."""
    part = [1]
    again = read(pickle.dumps([part, part]))
    assert again[0] is again[1]


def test_a_mark_is_taken_back_as_pickle_does_it() -> None:
    """With the instruction that also takes back a value."""
    assert pickle.loads(b"N(0.") is None
    assert read(b"N(0.") is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dict_of_a_request_comes_back(protocol: int) -> None:
    request = Request("http://example.com/é?a=b", headers={"A": ["b", "c"]}, body=b"\xff\0", meta={"s": {1}})
    assert read(pickle.dumps(request.to_dict(), protocol)) == request.to_dict()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_link_text_of_a_crawl_spider_comes_back_as_text(protocol: int) -> None:
    """Its class is lxml's, so that the pickle names it; each request of a CrawlSpider's rules holds one."""
    page = HtmlResponse("http://example.com", body=b'<a href="/x">the link</a>')
    (link,) = LinkExtractor().extract_links(page)
    assert type(link.text) is not str
    again = read(pickle.dumps({"link_text": link.text}, protocol))
    assert again == {"link_text": "the link"}
    assert type(again["link_text"]) is str


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None, **more: Any) -> None:
        self._reduced = (function, args, state, *more.values())

    def __reduce__(self) -> Any:
        return self._reduced


class Plain:
    """An instance of a class of this module."""


class Slotted(Plain):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return (Plain, (), {"__class__": "x"})


def hostile(marker: Path) -> dict[str, bytes]:
    """Return pickles that would write *marker*, or that name something, each in its own way."""
    command = f"touch {marker}"
    touch = f"open({str(marker)!r}, 'w')".encode()
    posix = os.system.__module__.encode()
    return {
        "os.system": pickle.dumps(Calls(os.system, command)),
        "os.system, protocol 0": pickle.dumps(Calls(os.system, command), 0),
        "subprocess.Popen": pickle.dumps(Calls(subprocess.Popen, ["touch", str(marker)])),
        "eval": pickle.dumps(Calls(builtins.eval, touch.decode())),
        "exec": pickle.dumps(Calls(builtins.exec, touch.decode())),
        "getattr": pickle.dumps(Calls(builtins.getattr, "", "join")),
        "__import__": pickle.dumps(Calls(builtins.__import__, "os")),
        "open": pickle.dumps(Calls(builtins.open, str(marker), "w")),
        "in a value": pickle.dumps({"url": "http://a", "meta": {"x": [Calls(os.system, command)]}}),
        "as a key": pickle.dumps({"url": 1, (1, 2): Calls(os.system, command)}),
        "INST": b"(S'" + command.encode() + b"'\ni" + posix + b"\nsystem\n.",
        "OBJ": b"(c" + posix + b"\nsystem\nS'" + command.encode() + b"'\no.",
        "a name alone": b"c" + posix + b"\nsystem\n.",
        "a dotted name": b"\x80\x04\x8c\x02os\x8c\x0bpath.system\x93.",
        "a name made of pieces": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x8c\x01x\x85R.",
        "NEWOBJ_EX": b"\x80\x04\x8c\x08builtins\x8c\x06object\x93)}\x92.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT4": b"\x80\x02\x84\x01\0\0\0.",
        "PERSID": b"Pthis\n.",
        "BINPERSID": b"\x80\x02\x8c\x04thisQ.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "an instance": pickle.dumps(Plain()),
        "an instance with a state": pickle.dumps(Slotted()),
        "BUILD on a dict": b"}}b.",
        "a class": pickle.dumps(Plain),
        "a datetime": pickle.dumps(datetime.datetime(2026, 1, 1)),
        "a Decimal": pickle.dumps(decimal.Decimal(1)),
        "a range": pickle.dumps(range(10**9)),
        "bytes by number": pickle.dumps(Calls(bytes, 10**12)),
        "a bytearray by number": pickle.dumps(Calls(bytearray, 10**12)),
        "a set of a str": pickle.dumps(Calls(set, "abc"), 2),
        "codecs of another encoding": b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0rot13\x86R.",
        "a call of data": b"(S'a'\nS'b'\n\x85R.",
        "a name that stays": b"c__builtin__\nset\n.",
        "a name in a list": b"]c__builtin__\nset\na.",
    }


@pytest.mark.parametrize("shape", hostile(Path("x")))
def test_what_names_or_calls_is_refused(shape: str, tmp_path: Path) -> None:
    """Nothing of it is imported or run."""
    marker = tmp_path / "marker"
    sys.modules.pop("antigravity", None)
    with pytest.raises(NotPlain) as refusal:
        read(hostile(marker)[shape])
    assert not marker.exists()
    assert len(str(refusal.value)) < 1000


def test_the_refusal_names_what_the_pickle_names() -> None:
    """The user reads it in the reason of the dead letter."""
    with pytest.raises(NotPlain, match=r"it names (posix|nt)\.system, and names"):
        read(pickle.dumps(Calls(os.system, "x")))
    with pytest.raises(NotPlain, match=r"names datetime\.datetime, and"):
        read(pickle.dumps({"a": datetime.datetime(2026, 1, 1)}))


def many(start: bytes, part: bytes, times: int, end: bytes) -> bytes:
    return start + part * times + end


BOMBS = {
    "deep lists": many(b"", b"]", 90_000, b"a" * 89_999 + b"."),
    "deep tuples": many(b")", b"\x85", 190_000, b"."),
    "a deep tuple as a key": many(b"})", b"\x85", 190_000, b"Ns."),
    "a deep tuple in a set": many(b"\x80\x04\x8f()", b"\x85", 190_000, b"\x90."),
    "a list in itself": b"\x80\x04]\x94h\0a.",
    "a list of itselves": many(b"\x80\x04]\x94(", b"h\0", 10_000, b"e."),
    "doubled 60 times": many(b"\x80\x04]\x94", b"h\0h\0\x86\x940", 1, b"")
    + b"".join(b"h" + bytes((n,)) + b"h" + bytes((n,)) + b"\x86\x94" for n in range(1, 60))
    + b".",
    "one text a thousand times": many(
        b"\x80\x04(X" + (500_000).to_bytes(4, "little") + b"x" * 500_000 + b"\x94", b"h\0", 50_000, b"l."
    ),
    "one list, many sets": many(
        b"\x80\x04](" + b"".join(b"\x8c\x05%05d" % n for n in range(20_000)) + b"e\x940"
        b"\x8c\x08builtins\x8c\x03set\x93\x940(",
        b"h\1h\0\x85R",
        400,
        b"l.",
    ),
    "one list of one number, again and again": many(
        b"\x80\x04](" + b"K\1" * 90_000 + b"e\x940\x8c\x08builtins\x8c\x03set\x93\x940(",
        b"h\1h\0\x85R",
        9_000,
        b"l.",
    ),
    "one long tuple, a key many times": many(
        b"\x80\x04(" + b"K\1" * 90_000 + b"t\x940}", b"h\0Ns", 30_000, b"."
    ),
    "one wide number, a key many times": many(
        b"\x80\x04\x8b" + (500_000).to_bytes(4, "little") + b"x" * 500_000 + b"\x940}", b"h\0Ns", 40_000, b"."
    ),
    **{
        f"keys of one hash, {how}": many(start, b"", 0, b"")
        + b"".join(part % (b"\x8a\x10" + ((2**61 - 1) * n).to_bytes(16, "little")) for n in range(1, 40_000))
        + end
        for how, start, part, end in (
            ("one by one", b"\x80\x04}", b"%sNs", b"."),
            ("at once", b"\x80\x04}(", b"%sN", b"u."),
            ("in a set", b"\x80\x04\x8f(", b"%s", b"\x90."),
            ("in a frozen set", b"\x80\x04(", b"%s", b"\x91."),
            ("in tuples", b"\x80\x04\x8f(", b"%s\x85", b"\x90."),
        )
    },
    "one text, many bytes": many(
        b"\x80\x02X" + (500_000).to_bytes(4, "little") + b"x" * 500_000 + b"q\0X\x06\0\0\0latin1q\x010"
        b"c_codecs\nencode\nq\x020(",
        b"h\2h\0h\1\x86R",
        400,
        b"l.",
    ),
    "equal texts, many keys": b"\x80\x04"
    + b"".join(b"X" + (400_000).to_bytes(4, "little") + b"x" * 400_000 + b"q%c0" % n for n in (0, 1))
    + b"}"
    + b"h\0Nsh\1Ns" * 20_000
    + b".",
    "a million instructions": b"\x80\x04N" + b"0N" * 500_000 + b".",
    "bytes that are not there": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.",
    "a bytearray that is not there": b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b"x.",
    "a number of 10^6 digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "an unhashable key": b"}]Ns.",
}


@pytest.mark.parametrize("shape", [shape for shape in BOMBS if shape.startswith(("deep", "a list in"))])
def test_what_is_deep_is_stopped_as_such(shape: str) -> None:
    """64 levels are fine; before they are counted nothing of it is looked at by Python's own recursion."""
    with pytest.raises(NotPlain, match="nested deeper than 64 levels, or contains itself"):
        read(BOMBS[shape])
    assert read(b"]" * 64 + b"a" * 63 + b".")


def test_keys_of_one_hash_are_refused_as_such() -> None:
    """More of them than by chance; with -1 and -2 there are a few."""
    for shape in BOMBS:
        if shape.startswith("keys of one hash"):
            with pytest.raises(NotPlain, match=r"have the same hash|neither text nor bytes"):
                read(BOMBS[shape])
    grid = set(itertools.product((-1, -2), repeat=5))
    assert len({hash(point) for point in grid}) == 1
    assert read(pickle.dumps(grid)) == grid
    assert read(pickle.dumps([{1: n} for n in range(100)])) == [{1: n} for n in range(100)]


COPIED = [shape for shape in BOMBS if ", many " in shape]


@pytest.mark.parametrize("shape", BOMBS)
def test_what_grows_is_stopped(shape: str) -> None:
    """Not by the C stack, and within a second or two."""
    began = time.thread_time()
    with pytest.raises(NotPlain):
        read(BOMBS[shape])
    assert time.thread_time() - began < 10


@pytest.mark.parametrize("shape", COPIED)
def test_what_copies_is_stopped_early(shape: str) -> None:
    """Before the memory is taken, not when it is counted."""
    tracemalloc.start()
    try:
        with pytest.raises(NotPlain, match="its value is larger"):
            read(BOMBS[shape])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * 1024 * 1024


def test_a_small_pickle_does_not_become_a_large_value() -> None:
    """Our own entry would have each part as often as it occurs, and be written out in full."""
    part: Any = "a" * 100
    for _ in range(4):
        part = [part] * 10
    small = pickle.dumps({"url": "http://a/1", "meta": {"x": part}})
    assert len(small) < 300
    with pytest.raises(NotPlain, match="8 times as large as the pickle"):
        read(small)


@pytest.mark.parametrize(
    "harmless",
    [b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.", b"\x80\x02Nr\xff\xff\xff\xff."],
    ids=["a frame that is not there", "a memo of 4 billion"],
)
def test_what_only_announces_takes_no_memory(harmless: bytes) -> None:
    """`pickle` makes room for as many; here nothing is."""
    assert read(harmless) is None


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b".",
        b"N",
        b"NN.",
        b"N.N.",
        b"0.",
        b"(N.",
        b"(1.",
        b"t.",
        b"R.",
        b"]](a1.",
        b"g9\n.",
        b"{}",
        b"\x80",
        b"\xff" * 9,
    ],
)
def test_what_is_not_a_pickle_is_refused(junk: bytes) -> None:
    """Nothing else is ever raised."""
    with pytest.raises(NotPlain):
        read(junk)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(junk: bytes) -> None:
    with suppress(NotPlain):
        read(junk)


@given(st.data())
def test_a_spoiled_pickle_is_read_or_refused(data: st.DataObject) -> None:
    """A request's, with some bytes changed."""
    pickled = bytearray(pickle.dumps(Request("http://example.com", meta={"a": (1, {2})}).to_dict(), -1))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NotPlain):
        read(bytes(pickled))


def test_more_bytes_than_an_entry_may_have_are_refused() -> None:
    with pytest.raises(NotPlain, match="1,042 bytes are more than DQ_MAX_ENTRY_BYTES = 1,024"):
        loads(pickle.dumps("x" * 1024, 4), 1024)
