"""Check which values the attributes of a stored request may have.

Encoder and decoder make the same checks, so every encoded request can be decoded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from scrapy_dq.codec import playwright
from scrapy_dq.codec.unfit import NotHere, Unfit, exactly
from scrapy_dq.hostnames import LONGEST_HOST
from scrapy_dq.text import url_error

Check = Callable[[Any], Any]
"""Returns the value in plain types. Raises Unfit, or any other exception, if it is not acceptable."""

_NUMBERS_AND_DEFAULTS: dict[str, tuple[int, Any]] = {
    "url": (1, None),
    "callback": (2, None),
    "errback": (3, None),
    "method": (4, "GET"),
    "headers": (5, None),
    "body": (6, b""),
    "cookies": (7, None),
    "meta": (8, None),
    "encoding": (9, "utf-8"),
    "priority": (10, 0),
    "dont_filter": (11, False),
    "flags": (12, None),
    "cb_kwargs": (13, None),
}
KEYS = {name: number for name, (number, _) in _NUMBERS_AND_DEFAULTS.items()}
"""The numbers that stand for a Request's attributes in FORMAT 1.

Attributes that a subclass adds are stored under their names.
"""
CLASS = 0
"""The number that stands for the class of a request."""
NAMES = {number: name for name, number in KEYS.items()}
DEFAULTS = {name: default for name, (_, default) in _NUMBERS_AND_DEFAULTS.items() if name != "url"}
"""The default values of attributes. An attribute with its default value is not stored."""

_UNSAFE_IN_URL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]").search
"""Characters that end a line of a log, control a terminal, or reverse the text around them."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search  # HTTP allows a tab
_CONTROL_BYTES = bytes({*range(32), 127} - {ord("\t")})
_ONLY_BYTES = frozenset({bytes})
_USUAL_ENCODINGS = frozenset({"utf-8", "latin-1", "iso-8859-1", "cp1252", "ascii"})
# The first two are for host names, and take quadratic time. Without a map, `charmap` encodes nothing.
_OTHER_ENCODINGS = ("idna", "punycode", "charmap")
_JSON_TYPES = (dict, list, tuple, str, int, float, bool, type(None))
LONGEST_DOWNLOAD_S = 86_400
_WRITES_A_FILE = "ftp_local_filename"
# Python and w3lib ignore white space in these places. w3lib, like browsers, reads a backslash as a slash.
_netloc_of = re.compile(r"[\x00-\x20]*[A-Za-z][A-Za-z0-9+.-]*:(?:[\t\r\n]*[/\\]){2}([^/?#]*)").match
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


def check_host(url: str) -> None:
    """Raise Unfit if the host of *url* is too long to be real.

    A web page may link to such a host. Call this function before Python splits the URL, which takes quadratic
    time for a host with characters outside ASCII. Scrapy looks up cookies for each parent domain of a host,
    and uses 1.3 GB for a host of 50 kB.
    """
    found = _netloc_of(url) if len(url) > LONGEST_HOST else None
    # A password may be long, because it is often a token.
    if found and len(found[1].rpartition("@")[2]) > LONGEST_HOST:
        raise Unfit(f"its host has more than {LONGEST_HOST:,} characters")


def check_parses(url: str) -> None:
    """Raise Unfit if the host part of *url* is too long (`check_host`), or if Python cannot find it.

    Scrapy cannot find the host either, and would raise in its engine. Scrapy itself makes such URLs: it turns
    a link of `//` and a wide bracket into `http://[`.
    """
    if url.isascii() and "[" not in url and "]" not in url:  # Python accepts all such URLs
        if len(url) > LONGEST_HOST:  # this check saves a call for nearly every request
            check_host(url)
        return
    check_host(url)
    try:
        urlsplit(url)
    except ValueError as error:
        raise Unfit(url_error(error) or "its URL cannot be parsed") from error


def url_check(schemes: Collection[str]) -> Check:
    """Return the check of a URL whose scheme must be one of *schemes*."""
    allowed = frozenset(scheme.lower() for scheme in schemes)
    prefixes = tuple(f"{scheme}:" for scheme in allowed)

    def check(url: Any) -> str:
        if type(url) is not str or (not url.isprintable() and _UNSAFE_IN_URL(url)):
            raise Unfit("a URL is a str without control characters, line separators and directions of text")
        if not url.startswith(prefixes) and (scheme := url.partition(":")[0].lower()) not in allowed:
            raise NotHere(
                f"the scheme {scheme!a:.50} is not in DQ_URL_SCHEMES ({', '.join(sorted(allowed))})"
            )
        check_parses(url)
        return url

    return check


def method(value: Any) -> str:
    if type(value) is not str or not _TOKEN(value):
        raise Unfit("a method consists of ASCII letters, digits and !#$%&'*+.^_`|~-")
    return value


def check_written(written: Mapping[str, Any]) -> None:
    """Raise Unfit for attributes that Request would check slowly, or would refuse without naming them."""
    check_host(str(written["url"]))
    if not isinstance(given := written.get("headers", {}), Mapping | list):
        raise Unfit(f"headers: expected an object, or a list of pairs, not {type(given).__name__}")
    if "encoding" in written:
        encoding(written["encoding"])


def headers(value: Any) -> dict[bytes, list[bytes]]:
    """Return headers as a plain dict.

    An empty list is kept, because it prevents Scrapy from setting the default header.
    """
    if not isinstance(value, dict):
        raise Unfit("headers must be a dict")
    plain = dict(value)
    parts: list[bytes] = [*plain]
    for values in plain.values():
        if type(values) is not list:
            raise Unfit("headers must map bytes to lists of bytes")
        parts += values
    if not _ONLY_BYTES.issuperset(map(type, parts)):
        raise Unfit("headers must map bytes to lists of bytes")
    joined = b"".join(parts)
    if joined.translate(None, _CONTROL_BYTES) != joined:
        raise Unfit("a header contains CR, LF or another control character")
    # Scrapy logs the Referer with each page. Other headers may be in any encoding.
    for referer in () if joined.isascii() else plain.get(b"Referer", ()):
        if not referer.isascii() and _UNSAFE_IN_URL(referer.decode("utf-8", "replace")):
            raise Unfit("the Referer contains control characters, line separators or directions of text")
    return plain


def encoding(value: Any) -> str:
    name: str = exactly(value, str)
    if name not in _USUAL_ENCODINGS:
        try:
            "".encode(name)
            known = codecs.lookup(name).name not in _OTHER_ENCODINGS
        except (LookupError, ValueError):
            known = False
        if not known:
            raise Unfit(f"{name!a:.50} is not a text encoding that Python knows")
    return name


def stored_encoding(value: Any) -> Any:
    """Return the encoding under which a request is stored: *value*, or the default if it is unknown.

    `response.follow` copies the encoding of the page, and the site may name any encoding. With an unknown
    encoding, the request could not be stored, and would stay in this worker. The default does no harm,
    because the URL and the body are already encoded.
    """
    try:
        return encoding(value)
    except Unfit:
        return DEFAULTS["encoding"]


def cookies(value: Any) -> Any:
    """Refuse control characters in cookies.

    A worker keeps cookies, so a CR would be in the headers of all its later requests to the site.
    """
    exactly(value, dict, list)
    parts: list[Any] = []
    for one in (value,) if type(value) is dict else value:
        if not isinstance(one, dict):
            raise Unfit("expected dict, or list of dict")
        parts += one
        parts += one.values()
    for part in parts:
        text = part.decode("latin-1") if isinstance(part, bytes) else part
        if isinstance(text, str) and _CONTROL(text):
            raise Unfit("a cookie contains CR, LF or another control character")
    return value


def meta_check(listed: Collection[str], own_method: Callable[[str], Any]) -> Check:
    """Return a check of `meta` against values that make Scrapy or a plugin import, call or write something.

    The check also refuses values that harm other requests of the worker.

    Args:
        listed: dotted names that DQ_TYPES lists.
        own_method: returns the spider's method of that name, or raises Unfit if entries may not name it.
    """

    own = playwright.meta_checks(own_method) if playwright.LISTED not in listed else {}
    watched = {_WRITES_A_FILE, "referrer_policy", "download_timeout", *own}

    def check(value: Any) -> Any:
        if type(value) is not dict:
            exactly(value, dict)
        # Scrapy adds 1 to the depth, and compares the result with the largest depth so far. After a
        # Decimal("NaN"), this comparison raises for each response.
        if type(value.get("depth", 0)) not in (int, bool):
            raise Unfit("depth is an int")
        if watched.isdisjoint(value):
            return value
        if _WRITES_A_FILE in value:
            raise Unfit(f"{_WRITES_A_FILE!r} would make Scrapy write a file as the worker's user")
        # Source: scrapy/spidermiddlewares/referer.py::_load_policy_class
        policy, timeout = value.get("referrer_policy"), value.get("download_timeout")
        if policy is not None and (type(policy) is not str or ("." in policy and policy not in listed)):
            raise Unfit(
                "referrer_policy names what Scrapy would import and call: it is stored if DQ_TYPES lists it"
            )
        if timeout is not None and not (type(timeout) in (int, float) and 0 <= timeout <= LONGEST_DOWNLOAD_S):
            raise Unfit(f"download_timeout is a number of seconds, at most {LONGEST_DOWNLOAD_S:,}")
        for name in own.keys() & value.keys():
            own[name](value[name])
        return value

    return check


def json_data(value: Any) -> Any:
    """Check a value that JsonRequest deep-copies, because the copy would call methods of an instance."""
    if type(value) not in _JSON_TYPES:
        raise Unfit("expected values of the types that JSON has")
    if type(value) in (dict, list, tuple):
        for part in (*value, *value.values()) if type(value) is dict else value:
            json_data(part)
    return value


def priority(value: Any) -> int:
    if not isinstance(value, int):
        raise Unfit("a priority is an int")
    return value


def anything(value: Any) -> Any:
    return value


def unknown(value: Any) -> Any:
    raise NotHere("neither its class nor this version of scrapy_dq has it")
