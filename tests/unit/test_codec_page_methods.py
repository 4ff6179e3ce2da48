"""PageMethods of scrapy-playwright are stored without results, and risky ones only if DQ_TYPES lists them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Request, Spider

from scrapy_dq.codec import FORMAT, CannotDecode, Codec
from support.codec_values import URL, refused, round_trip


class BookSpider(Spider):
    name = "books"


@pytest.fixture
def codec() -> Codec:
    return Codec(BookSpider())


PAGE_METHODS = """
from typing import Any
class PageMethod:
    def __init__(self, method, *args, **kwargs):
        self.method, self.args, self.kwargs, self.result = method, args, kwargs, None
"""


@pytest.fixture
def page_method(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a class like PageMethod of scrapy-playwright 0.0.48, in a module of the same name."""
    module = ModuleType("scrapy_playwright.page")
    exec(PAGE_METHODS, vars(module))
    monkeypatch.setitem(sys.modules, "scrapy_playwright.page", module)
    monkeypatch.setitem(sys.modules, "scrapy_playwright", ModuleType("scrapy_playwright"))
    monkeypatch.setattr(sys.modules["scrapy_playwright"], "page", module, raising=False)
    return vars(module)["PageMethod"]


def test_page_methods_are_carried_without_their_results(page_method: Any, codec: Codec) -> None:
    """A result stays in the worker that ran the method."""
    method = page_method("wait_for_selector", "div.quote", timeout=5000)
    method.result = object()
    again = round_trip([method], codec)[0]
    assert type(again) is page_method
    assert vars(again) == {
        "method": "wait_for_selector", "args": ("div.quote",), "kwargs": {"timeout": 5000}, "result": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"method": 1}, {"args": []}, {"kwargs": None}, {"more": 1}],
    ids=" ".join,
)
def test_a_page_method_of_another_shape_is_refused(
    changes: dict[str, Any], page_method: Any, codec: Codec
) -> None:
    """Another program that writes to the same Redis may have stored a state with other fields or types."""
    state = {"method": "click", "args": ExtType(2, msgpack.packb([])), "kwargs": {}}

    def read(state: dict[str, Any]) -> Any:
        stored = ExtType(5, msgpack.packb([f"{page_method.__module__}:PageMethod", state]))
        return codec.decode(bytes((FORMAT,)) + msgpack.packb({1: URL, 8: {"x": stored}})).meta["x"]

    assert read(state).method == "click"
    with pytest.raises(CannotDecode, match="PageMethod"):
        read(state | changes)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("goto", "file:///etc/passwd"), {}),
        (("set_input_files", "input", "/etc/passwd"), {}),
        (("screenshot",), {"path": "/tmp/x"}),
        (("add_script_tag",), {"path": "x"}),
        (("__class__",), {}),
    ],
)
def test_page_methods_that_open_files_or_addresses_must_be_listed(
    args: Any, options: Any, page_method: Any, codec: Codec
) -> None:
    """If DQ_TYPES lists PageMethod, these methods are stored like values of any other listed class."""
    method = page_method(*args, **options)
    assert "DQ_TYPES lists scrapy_playwright.page.PageMethod" in refused(method, codec)
    listing = Codec(BookSpider(), types=["scrapy_playwright.page.PageMethod"])
    assert vars(round_trip(method, listing)) == vars(method)
    payload = listing.encode(Request(URL, meta={"x": method}))
    with pytest.raises(CannotDecode, match="DQ_TYPES"):
        codec.decode(payload)
