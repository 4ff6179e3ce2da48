"""Build requests from their stored attributes, unchanged; and copy requests."""

from __future__ import annotations

import copy
from typing import Any

from scrapy import Request
from scrapy.http import Headers

from scrapy_dq.codec.refusing import reason_of
from scrapy_dq.codec.unfit import NotHere, Unfit

_TAKES_VERBATIM_URL = Request("http://a/ b", meta={"verbatim_url": True}).url == "http://a/ b"
"""Whether this version of Scrapy can leave a URL unchanged, which halves the time of decoding."""
_CONTAINERS = {"headers": dict, "cookies": dict, "meta": dict, "cb_kwargs": dict, "flags": list}
"""Instead of None, a constructor gets an empty container of this type, as `Request.copy()` passes it."""


def copied(request: Request) -> Request:
    """Return a copy of *request* whose headers and `meta` the caller may modify.

    A request of a subclass is not copied with `request.copy()`. This would call the constructor, which may
    change its arguments, and would lose everything that the `attributes` of the class do not list.
    """
    if type(request) is Request:
        return request.copy()
    made = copy.copy(request)
    made._meta = dict(request.meta)  # Scrapy has no public way to set it
    made.headers = Headers(request.headers, encoding=request.headers.encoding)
    return made


def plain(kwargs: dict[str, Any]) -> Request:
    """Return a request of Scrapy's own class, with these attributes unchanged."""
    headers = kwargs.pop("headers", None)
    meta = kwargs.setdefault("meta", {})
    verbatim = _TAKES_VERBATIM_URL and "verbatim_url" not in meta
    if verbatim:
        meta["verbatim_url"] = True
        request = Request(**kwargs)
        del request.meta["verbatim_url"]
    else:
        request = Request(**kwargs)
    if headers:
        # The constructor and `update` of Headers would normalize each name and value again.
        request.headers = made = Headers.__new__(Headers)
        made.encoding = kwargs.get("encoding", "utf-8")
        dict.update(made, headers)
    return request if verbatim and "method" not in kwargs else _exact(request, kwargs)


def of_class(cls: type[Request], kwargs: dict[str, Any]) -> Request:
    """Return a request of a subclass, with the attributes in *kwargs* unchanged.

    The constructor gets copies, because it may modify its arguments, and merge some into others. It may also
    change numbers, so the attributes are set again after it.
    """
    kwargs |= {name: kind() for name, kind in _CONTAINERS.items() if kwargs.get(name, ...) is None}
    try:
        request = cls(**{name: _copied(value) for name, value in kwargs.items()})
    except Exception as error:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise NotHere(f"{name} cannot be constructed: {reason_of(error)}") from error
    for name in ("callback", "errback", "priority", "dont_filter", "cookies", "flags"):
        if name in kwargs:
            setattr(request, name, kwargs[name])
    for name in ("meta", "cb_kwargs"):
        if name in kwargs:
            values = getattr(request, name)
            values.clear()
            values.update(kwargs[name])
    if "headers" in kwargs:
        request.headers.clear()
        dict.update(request.headers, kwargs["headers"])
    return _exact(request, kwargs)


def _copied(value: Any) -> Any:
    # copy.deepcopy() would run methods of the instances in an entry.
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


def _exact(request: Request, kwargs: dict[str, Any]) -> Request:
    """Undo the changes of a constructor: safe_url_string() alters even some safe URLs."""
    url = kwargs["url"]
    if request.url != url:
        if "://" not in url and "://" in request.url:
            # w3lib before 2.5 turns http:x, which Request would refuse, into http:///x.
            raise Unfit(f"url: Missing scheme in request url: {url!a:.50}")
        request._url = url  # without verbatim_url, Scrapy has no public way to set it
    if "method" in kwargs and request.method != kwargs["method"]:
        request.method = kwargs["method"]
    return request
