"""Pickles as plain data: the pickles of scrapy-redis and of a JOBDIR are read, and no code runs."""

from __future__ import annotations

import builtins
import datetime
import os
import pickle
import sys
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
PROTOCOLS = range(4, pickle.HIGHEST_PROTOCOL + 1)

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
    """Each protocol gives the same values and types as `pickle` itself."""
    pickled = pickle.dumps(value, protocol)
    assert read(pickled) == pickle.loads(pickled)
    assert repr(read(pickled)) == repr(pickle.loads(pickled))


def test_an_object_that_occurs_twice_stays_one_object() -> None:
    """A list in two places stays one list, as in `pickle`."""
    part = [1]
    again = read(pickle.dumps([part, part]))
    assert again[0] is again[1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dict_of_a_request_comes_back(protocol: int) -> None:
    request = Request("http://example.com/é?a=b", headers={"A": ["b", "c"]}, body=b"\xff\0", meta={"s": {1}})
    assert read(pickle.dumps(request.to_dict(), protocol)) == request.to_dict()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_link_text_of_a_crawl_spider_comes_back_as_text(protocol: int) -> None:
    """The link text in a CrawlSpider's request is an instance of an lxml class, which the pickle names."""
    page = HtmlResponse("http://example.com", body=b'<a href="/x">the link</a>')
    (link,) = LinkExtractor().extract_links(page)
    assert type(link.text) is not str
    again = read(pickle.dumps({"link_text": link.text}, protocol))
    assert again == {"link_text": "the link"}
    assert type(again["link_text"]) is str


class Calls:
    """An object whose pickle is a call."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None, **more: Any) -> None:
        self._reduced = (function, args, state, *more.values())

    def __reduce__(self) -> Any:
        return self._reduced


class Plain:
    """A class of this module, for instances in pickles."""


class Slotted(Plain):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return (Plain, (), {"__class__": "x"})


def hostile(marker: Path) -> dict[str, bytes]:
    """Return pickles that `loads` must refuse, each for a different reason.

    Some would create *marker* if the pickle module read them.
    """
    command = f"touch {marker}"
    touch = f"open({str(marker)!r}, 'w')".encode()
    posix = os.system.__module__.encode()
    return {
        "os.system": pickle.dumps(Calls(os.system, command)),
        "os.system, protocol 0": pickle.dumps(Calls(os.system, command), 0),
        "eval": pickle.dumps(Calls(builtins.eval, touch.decode())),
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
        "an instance with a state": pickle.dumps(Slotted()),
        "BUILD on a dict": b"}}b.",
        "a range": pickle.dumps(range(10**9)),
        "a bytearray by number": pickle.dumps(Calls(bytearray, 10**12)),
        "bytes of an older protocol": pickle.dumps(b"x", 2),
        "a call of data": b"(S'a'\nS'b'\n\x85R.",
    }


@pytest.mark.parametrize("shape", hostile(Path("x")))
def test_a_pickle_that_names_or_calls_anything_is_refused(shape: str, tmp_path: Path) -> None:
    """No such pickle imports or runs anything."""
    marker = tmp_path / "marker"
    sys.modules.pop("antigravity", None)
    with pytest.raises(NotPlain) as refusal:
        read(hostile(marker)[shape])
    assert not marker.exists()
    assert len(str(refusal.value)) < 1000


def test_the_refusal_quotes_the_names_in_the_pickle() -> None:
    """The user finds this name in the reason of the dead letter."""
    with pytest.raises(NotPlain, match=r"it names (posix|nt)\.system, but names"):
        read(pickle.dumps(Calls(os.system, "x")))
    with pytest.raises(NotPlain, match=r"names datetime\.datetime, but"):
        read(pickle.dumps({"a": datetime.datetime(2026, 1, 1)}))


@pytest.mark.parametrize("junk", [b"", b".", b"N", b"(1.", b"R.", b"]](a1.", b"g9\n.", b"{}", b"\x80"])
def test_bytes_that_are_not_a_pickle_are_refused(junk: bytes) -> None:
    """`loads` raises no exception except NotPlain."""
    with pytest.raises(NotPlain):
        read(junk)


# LONG_BINPUT is left out, because the number after it is an index into the memo. The unpickler would allocate
# a memo for such an index, of up to 64 GB.
some_bytes = st.integers(0, 255).filter(lambda byte: byte != pickle.LONG_BINPUT[0])


@given(st.lists(some_bytes, max_size=200).map(bytes))
def test_any_bytes_are_read_or_refused(junk: bytes) -> None:
    with suppress(NotPlain):
        read(junk)


@given(st.data())
def test_a_spoiled_pickle_is_read_or_refused(data: st.DataObject) -> None:
    """A few bytes in a pickle of plain data are changed."""
    pickled = bytearray(pickle.dumps({"a": (1, {2}), "b": [b"c", 2**70, frozenset({1.5})]}, -1))
    assert pickle.LONG_BINPUT not in pickled
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(some_bytes)
    with suppress(NotPlain):
        read(bytes(pickled))


def test_a_pickle_larger_than_an_entry_is_refused() -> None:
    with pytest.raises(NotPlain, match="1,042 bytes are more than DQ_MAX_ENTRY_BYTES = 1,024"):
        loads(pickle.dumps("x" * 1024, 4), 1024)
