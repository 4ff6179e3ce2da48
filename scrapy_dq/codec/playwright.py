"""Limit the actions that a stored request can start in scrapy-playwright's browser; allow no file paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy_dq.codec.shapes import Shape
from scrapy_dq.codec.unfit import Unfit

NAME = "scrapy_playwright.page:PageMethod"
LISTED = NAME.replace(":", ".")
"""The name in DQ_TYPES."""
_FIELDS = ("method", "args", "kwargs")
# None of these methods reads or writes a file of this machine, opens another address, or registers code that
# the browser runs later.
_METHODS = frozenset((
    "bring_to_front", "check", "click", "content", "dblclick", "dispatch_event", "drag_and_drop",
    "emulate_media", "eval_on_selector", "eval_on_selector_all", "evaluate", "fill", "focus", "get_attribute",
    "go_back", "go_forward", "hover", "inner_html", "inner_text", "input_value", "is_checked", "is_disabled",
    "is_editable", "is_enabled", "is_hidden", "is_visible", "press", "query_selector", "query_selector_all",
    "reload", "screenshot", "select_option", "set_checked", "set_viewport_size", "tap", "text_content",
    "title", "type", "uncheck", "wait_for_event", "wait_for_function", "wait_for_load_state",
    "wait_for_selector", "wait_for_timeout", "wait_for_url",
))  # fmt: skip
# Arguments of a browser context that neither start a program nor reach a file of this machine.
_CONTEXT_KWARGS = frozenset((
    "accept_downloads", "base_url", "bypass_csp", "color_scheme", "contrast", "device_scale_factor",
    "extra_http_headers", "forced_colors", "geolocation", "has_touch", "http_credentials",
    "ignore_https_errors", "is_mobile", "java_script_enabled", "locale", "no_viewport", "offline",
    "permissions", "proxy", "reduced_motion", "screen", "service_workers", "strict_selectors", "timezone_id",
    "user_agent", "viewport",
))  # fmt: skip


def meta_checks(own_method: Callable[[str], Any]) -> dict[str, Callable[[Any], None]]:
    """Return checks by key of `meta`; they raise Unfit for values that a stored request may not have.

    Args:
        own_method: returns the spider's method of that name, or raises Unfit.
    """

    def refuse(key: str, effect: str) -> None:
        raise Unfit(
            f"its {key} could {effect}, and any program may have stored it: it is stored if DQ_TYPES lists "
            f"{LISTED}"
        )

    def context_kwargs(value: Any) -> None:
        if type(value) is not dict or not _CONTEXT_KWARGS.issuperset(value):
            refuse("playwright_context_kwargs", "start a program or reach files")

    def init_callback(value: Any) -> None:
        refuse("playwright_page_init_callback", "import and call anything")

    def event_handlers(value: Any) -> None:
        if type(value) is not dict or not all(type(name) is str for name in value.values()):
            refuse("playwright_page_event_handlers", "call anything")
        for name in value.values():
            own_method(name)

    return {
        "playwright_context_kwargs": context_kwargs,
        "playwright_page_init_callback": init_callback,
        "playwright_page_event_handlers": event_handlers,
    }


def shape_of(cls: type, *, listed: bool) -> Shape:
    """Return the shape of PageMethod, without its result.

    Args:
        listed: DQ_TYPES lists the class, so any method is allowed.
    """

    def read(method: Any) -> dict[str, Any]:
        return _checked({name: value for name, value in vars(method).items() if name != "result"}, listed)

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
            f"untrusted: it is stored only if DQ_TYPES lists {LISTED}"
        )
    return state
