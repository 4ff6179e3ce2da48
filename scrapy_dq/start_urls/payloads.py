"""Makes requests from start payloads, and from items of a Queue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from scrapy import FormRequest, Request, Spider

from scrapy_dq.codec import CannotDecode, CannotServe, Codec, attributes, formats
from scrapy_dq.codec.attributes import check_host
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.text import printable, prose_without_logins, url_error

LONGEST_FED_S = 2_592_000
"""30 days. A payload that is due later, perhaps because its time is in milliseconds, would keep the crawl
open."""

FED = (bytes((formats.PAYLOAD,)), bytes((formats.ITEM,)))
"""First bytes of entries that are not requests yet: start payloads and items of a Queue."""


class NoRequest(ValueError):
    """No request can be made from a payload; the message is the reason of its dead letter."""


class NotMadeHere(NoRequest):
    """The payload needs code or settings that this worker lacks."""


class Payloads:
    """Makes requests from start payloads. A payload cannot run any code except the spider's."""

    def __init__(self, spider: Spider, codec: Codec) -> None:
        self._codec = codec
        self._make: Callable[[bytes], Any] = getattr(spider, "make_request_from_data", request_from_data)

    def requests(self, payload: bytes) -> list[Request]:
        """Return the requests that an entry describes, at least one.

        Raises:
            NotMadeHere: other workers may be able to make them.
            NoRequest: no request can be made.
        """
        try:
            self._codec.check_size(payload)
            if payload[0] == formats.ITEM:
                made = self._of_item(self._codec.value(payload[1:]))
            else:
                made = self._make(payload[1:])
            requests = list(_each(made))
            for request in requests:
                self._codec.check_made(request)
        except Exception as error:  # any bytes, and the spider's own method, may raise anything
            clear = isinstance(error, (NoRequest, CannotDecode))
            reason = str(error) if clear else url_error(error) or f"{type(error).__name__}: {error}"
            kind = NotMadeHere if isinstance(error, CannotServe) else NoRequest
            raise kind(printable(prose_without_logins(reason))) from error
        if not requests:
            raise NoRequest("make_request_from_data() made no request from it")
        return requests

    def _of_item(self, item: Any) -> Any:
        if isinstance(item, str):
            return self._make(item.encode())
        if isinstance(item, dict):
            return self._codec.build({"dont_filter": True, **item})
        raise NoRequest(f"a {type(item).__name__} is neither a URL nor a dict of a request's attributes")


def request_from_data(data: bytes, encoding: str = "utf-8") -> Request:
    """Return the request that a payload describes: a URL, or JSON of an object with "url".

    "method" and "meta" belong to the request, and all other members of the object are form data. The request
    is not filtered as a duplicate.

    Raises:
        NoRequest: the payload is neither, has values of the wrong type, or its "meta" would make Scrapy run
            code.
    """
    try:
        text = data.decode(encoding).strip()
    except (UnicodeDecodeError, LookupError) as error:
        raise NoRequest(f"it is not valid {encoding} ({error})") from error
    if not text.startswith(("{", "[", '"')):
        if "://" not in text:
            raise NoRequest(f"{text[:100]!a} is neither a URL nor a JSON object")
        _checked(check_host, text)
        return Request(text, dont_filter=True)
    fields = object_in(text)
    url = _taken(fields, "url", str, None)
    if not url:
        raise NoRequest('its JSON has no "url"')
    _checked(check_host, url)
    method = _checked(attributes.method, _taken(fields, "method", str, "GET").upper())
    meta = _taken(fields, "meta", dict, {})
    _check_meta(meta)
    if not fields:
        return Request(url, method=method, meta=meta, dont_filter=True)
    form = [(name, value) for name, values in fields.items() for value in _form_values(name, values)]
    return FormRequest(url, method=method, meta=meta, formdata=form, dont_filter=True)


def object_in(text: str) -> dict[str, Any]:
    """Return the object that JSON describes; raise NoRequest if it describes no object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoRequest(f"it begins like JSON but is invalid ({error})") from error
    if not isinstance(found, dict):
        raise NoRequest(f"its JSON is a {type(found).__name__}, not an object")
    return found


def _checked(check: Callable[[Any], Any], value: Any, where: str = "") -> Any:
    try:
        return check(value)
    except Unfit as unfit:
        raise NoRequest(f"{where}{unfit.reason}") from unfit


def _taken(fields: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = fields.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise NoRequest(f'its "{name}" is a {type(value).__name__}, not a {kind.__name__}')
    return value


def _check_meta(meta: dict[str, Any]) -> None:
    # The types of DQ_TYPES are not allowed either. They are for requests that the project itself makes.
    _checked(_UNTRUSTED_META, meta, 'its "meta": ')
    for key, latest in (("dq_delay", LONGEST_FED_S), ("dq_not_before", time.time() + LONGEST_FED_S)):
        due = meta.get(key)
        if isinstance(due, (int, float)) and due > latest:
            raise NoRequest(f'its "{key}" is more than {LONGEST_FED_S // 86_400} days away')


def _no_method(name: str) -> NoReturn:
    raise Unfit(f"a start payload names no method ({name!a:.80})")


_UNTRUSTED_META = attributes.meta_check((), _no_method)


def _form_values(name: str, values: Any) -> Iterator[str]:
    for value in values if isinstance(values, list) else [values]:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise NoRequest(f'its "{name}" is not form data: text, numbers, or a list of these')
        yield str(value)


def _each(made: Any) -> Iterable[Request]:
    if made is None:
        return
    for one in [made] if isinstance(made, Request) or not isinstance(made, Iterable) else made:
        if not isinstance(one, Request):
            raise NoRequest(f"make_request_from_data() made a {type(one).__name__} from it, not a Request")
        yield one
