"""A spider, a subclass of Request, and a comparison of requests for the codec's tests."""

from __future__ import annotations

from typing import Any

import msgpack
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK

from scrapy_dq.codec import FORMAT, Codec

URL = "https://example.com/a?b=1"


class Base(Spider):
    def parse_overridden(self, response: Response) -> Any: ...


class BookSpider(Base):
    name = "books"
    rules = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.assigned = lambda response: None

    def parse(self, response: Response, **kwargs: Any) -> Any: ...

    def parse_book(self, response: Response) -> Any: ...

    def __parse_private(self, response: Response) -> Any: ...

    def parse_overridden(self, response: Response) -> Any: ...

    def private(self) -> Any:
        return self.__parse_private

    def overridden(self) -> Any:
        return super().parse_overridden

    @classmethod
    def parse_class(cls, response: Response) -> Any: ...

    @staticmethod
    def parse_static(response: Response) -> Any: ...

    async def start(self) -> Any:
        yield

    def start_requests(self) -> Any: ...

    def closed(self, reason: str) -> Any: ...

    @classmethod
    def update_settings(cls, settings: Any) -> None: ...

    def __call__(self, response: Response) -> Any: ...


class TokenRequest(Request):
    """A subclass of Request with one more attribute."""

    attributes = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: Any = "none", **kwargs: Any) -> None:
        self.token = token
        super().__init__(*args, **kwargs)


def entry(**fields: Any) -> bytes:
    """Return the bytes of an entry in the layout of FORMAT 1."""
    keys = ["_class", "url", "callback", "errback", "method", "headers", "body", "cookies", "meta"]
    keys += ["encoding", "priority", "dont_filter", "flags", "cb_kwargs", "depth", "referer"]
    fields = {"url": URL, **fields}
    return bytes((FORMAT,)) + msgpack.packb({keys.index(name): value for name, value in fields.items()})


def same(a: Any, b: Any) -> bool:
    """Return whether *a* and *b* are equal, including all types and the order of dicts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def described(request: Request, spider: Spider) -> dict[str, Any]:
    names = {NO_CALLBACK: "NO_CALLBACK"}
    fields = {name: getattr(request, name) for name in request.attributes}
    for name in ("callback", "errback"):
        fields[name] = names.get(fields[name]) or getattr(fields[name], "__name__", None)
    return fields | {"headers": dict(request.headers), "headers encoding": request.headers.encoding}


SPIDER = BookSpider()
SHARED = Codec(SPIDER, max_bytes=8_000_000)
