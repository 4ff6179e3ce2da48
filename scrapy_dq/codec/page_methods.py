"""scrapy-playwright's PageMethod: what an untrusted request may make the browser do."""

from __future__ import annotations

from typing import Any

from scrapy_dq.codec.shapes import Shape
from scrapy_dq.codec.unfit import Unfit

NAME = "scrapy_playwright.page:PageMethod"
_FIELDS = ("method", "args", "kwargs")
# No method that reads or writes a file of this machine, opens another address or registers code for later.
_METHODS = frozenset((
    "bring_to_front", "check", "click", "content", "dblclick", "dispatch_event", "drag_and_drop",
    "emulate_media", "eval_on_selector", "eval_on_selector_all", "evaluate", "fill", "focus", "get_attribute",
    "go_back", "go_forward", "hover", "inner_html", "inner_text", "input_value", "is_checked", "is_disabled",
    "is_editable", "is_enabled", "is_hidden", "is_visible", "press", "query_selector", "query_selector_all",
    "reload", "screenshot", "select_option", "set_checked", "set_viewport_size", "tap", "text_content",
    "title", "type", "uncheck", "wait_for_event", "wait_for_function", "wait_for_load_state",
    "wait_for_selector", "wait_for_timeout", "wait_for_url",
))  # fmt: skip


def shape_of(cls: type, *, listed: bool) -> Shape:
    """Return the shape of PageMethod, without its result.

    Args:
        listed: DQ_TYPES lists it: any method is allowed.
    """

    def read(method: Any) -> dict[str, Any]:
        attributes = dict(vars(method))
        if set(attributes) != {*_FIELDS, "result"}:
            raise Unfit("a PageMethod has a method, args, kwargs and a result")
        return _checked({field: attributes[field] for field in _FIELDS}, listed)

    def build(state: Any) -> Any:
        made: Any = object.__new__(cls)
        vars(made).update(_checked(state, listed), result=None)
        return made

    return Shape(NAME, cls, read, build)


def _checked(state: Any, listed: bool) -> dict[str, Any]:
    if type(state) is not dict or set(state) != set(_FIELDS):
        raise Unfit("a PageMethod has a method, args and kwargs")
    method, args, kwargs = (state[field] for field in _FIELDS)
    if type(method) is not str or type(args) is not tuple or type(kwargs) is not dict:
        raise Unfit("a PageMethod has a str as method, a tuple as args and a dict as kwargs")
    if not listed and (method not in _METHODS or "path" in kwargs):
        file = "path in " if "path" in kwargs else ""
        raise Unfit(
            f"{file}PageMethod({method!a:.80}) could reach files or other addresses, and a stored request is "
            f"untrusted: it is stored only if DQ_TYPES lists scrapy_playwright.page.PageMethod"
        )
    return state
