"""Untrusted meta that would make Scrapy or a plugin run code, write a file, or harm other requests."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_dq.codec import CannotDecode, CannotEncode, Codec
from support.packed_entries import DECIMAL, META, URL, extension, pack, reason
from unit.test_codec_hostile import BookSpider, touched


@pytest.fixture
def codec() -> Iterator[Codec]:
    """Yield a codec, and check afterwards that no trap of test_codec_hostile.py was touched."""
    touched.clear()
    yield Codec(BookSpider())
    assert not touched


META_THAT_RUNS: dict[str, dict[str, Any]] = {
    "a file of Scrapy's": {"ftp_local_filename": b"x"},
    "a policy to import": {"referrer_policy": "os.abort"},
    "a policy to call": {"referrer_policy": [1]},
    "another browser": {"playwright_context_kwargs": {"user_data_dir": "x", "executable_path": "/bin/sh"}},
    "a file": {"playwright_context_kwargs": {"record_har_path": "x"}},
    "no kwargs": {"playwright_context_kwargs": ["proxy"]},
    "a callback to import": {"playwright_page_init_callback": "os.abort"},
    "a method of Scrapy's": {"playwright_page_event_handlers": {"load": "__init__"}},
    "a handler of no name": {"playwright_page_event_handlers": {"load": 5}},
    "no handlers": {"playwright_page_event_handlers": 5},
}


@pytest.mark.parametrize("meta", META_THAT_RUNS.values(), ids=list(META_THAT_RUNS))
def test_meta_cannot_make_scrapy_or_a_plugin_run_code(codec: Codec, meta: dict[str, Any]) -> None:
    """Scrapy would import and call such a referrer_policy, and scrapy-playwright would use the others."""
    why = r"DQ_TYPES lists|has no callback|write a file"
    assert re.search(why, reason(pack({1: URL, META: meta}), codec))
    with pytest.raises(CannotEncode, match=why):
        codec.encode(Request(URL, meta=meta))


META_THAT_HARMS_OTHERS: dict[str, dict[str, Any]] = {
    "a depth that is no number": {"depth": Decimal("NaN")},
    "a depth that is a float": {"depth": math.nan},
    "a slot for ever": {"download_timeout": 1e300},
    "a slot for no time": {"download_timeout": math.nan},
}


@pytest.mark.parametrize("meta", META_THAT_HARMS_OTHERS.values(), ids=list(META_THAT_HARMS_OTHERS))
def test_no_meta_harms_other_requests(codec: Codec, meta: dict[str, Any]) -> None:
    """With a depth of NaN, Scrapy would fail at later responses. An endless download would fill its slot."""
    with pytest.raises(CannotEncode, match=r"depth is an int|download_timeout is a number"):
        codec.encode(Request(URL, meta=meta))
    (name, value), *_ = meta.items()
    stored = extension(DECIMAL, "NaN") if isinstance(value, Decimal) else value
    assert name in reason(pack({1: URL, META: {name: stored}}), codec)


WRITTEN_AND_REFUSED: dict[str, dict[str, Any]] = {
    **{f"meta: {name}": {"meta": meta} for name, meta in (META_THAT_RUNS | META_THAT_HARMS_OTHERS).items()},
    "a header of two lines": {"headers": {"A": "b\r\nC: d"}},
    "no encoding": {"encoding": "klingon"},
    "a method of two words": {"method": "GET / HTTP"},
    "a value that cannot be stored": {"meta": {"x": object()}},
    "too many bytes": {"body": b"x" * 1_048_576},
}


@pytest.mark.parametrize("written", WRITTEN_AND_REFUSED.values(), ids=list(WRITTEN_AND_REFUSED))
def test_a_request_that_may_not_be_stored_is_not_built_from_a_dict(
    codec: Codec, written: dict[str, Any]
) -> None:
    """Otherwise a worker would accept a start payload whose request it could never store."""
    with pytest.raises(CannotDecode):
        codec.build({"url": URL, **written})


POLICY = "scrapy.spidermiddlewares.referer.NoReferrerPolicy"


@pytest.mark.parametrize("meta", [
    {"referrer_policy": "no-referrer"}, {"referrer_policy": None}, {"download_timeout": 20.5, "depth": 7},
    {"playwright_page_event_handlers": {"dialog": "parse"}}, {"referrer_policy": POLICY},
])  # fmt: skip
def test_meta_with_usual_or_listed_values_is_stored(meta: dict[str, Any]) -> None:
    codec = Codec(BookSpider(), types=[POLICY])
    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


def test_usual_options_of_a_browser_context_are_stored(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PageMethod in DQ_TYPES, any option is stored."""
    usual = {"java_script_enabled": False, "proxy": {"server": "http://proxy.example:3128"}}
    meta = {"playwright": True, "playwright_context_kwargs": usual}
    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta
    module = ModuleType("scrapy_playwright.page")
    vars(module)["PageMethod"] = type("PageMethod", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "scrapy_playwright", ModuleType("scrapy_playwright"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listing = Codec(Spider("s"), types=["scrapy_playwright.page.PageMethod"])
    meta["playwright_context_kwargs"] = {"user_data_dir": "x"}
    assert listing.decode(listing.encode(Request(URL, meta=meta))).meta == meta
