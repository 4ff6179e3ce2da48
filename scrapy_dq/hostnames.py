"""The spelling of hosts: a page can link to one address under names without number, and to endless names."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from encodings import punycode
from functools import wraps
from typing import Any, TypeVar

_T = TypeVar("_T")
_is_numeric = re.compile(r"(?:(?:0x[0-9a-f]+|[0-9]+)(?:\.(?!$)|$)){1,4}", re.IGNORECASE).fullmatch
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address that is written as one of IPv6."""

LONGEST_LABEL = 63
"""Characters between two dots of a host name."""
LONGEST_HOST = 1_000
"""Characters of a URL's host with its port; a real one has at most 259."""


def bound_punycode() -> None:
    """Let this process convert no text to or from punycode that is longer than a label can be.

    Python needs the square of its length: a minute for a link to a host of 20,000 Chinese letters, and hours
    for a page whose charset is "punycode". Scrapy converts both before this package sees them, so that only
    Python itself can refuse them. It raises UnicodeError: w3lib leaves such a host as it is, `check_host`
    (codec/attributes.py) then refuses the URL, and Scrapy reports the page as one that it cannot decode.
    """
    for name in ("punycode_encode", "punycode_decode"):
        convert = getattr(punycode, name)
        if not hasattr(convert, "__wrapped__"):
            setattr(punycode, name, _bounded(convert))


def _bounded(convert: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(convert)
    def bounded(text: Any, *args: Any) -> Any:
        if len(text) > LONGEST_LABEL:
            raise UnicodeError(f"{len(text):,} characters are too many for a part of a host name")
        return convert(text, *args)

    return bounded


def is_address(name: str) -> bool:
    """Tell whether *name* is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Tell whether *name* is this machine, and no other machine reaches what listens on it."""
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def one_spelling(host: str) -> str:
    """Return the usual spelling of a host.

    127.0.0.2 is also 127.2, 0x7f000002 and 2130706434; a name may end with a dot.
    """
    if host.endswith("."):
        host = host[:-1] or host
    try:
        if host.rpartition(".")[2][:1].isdigit() and _is_numeric(host):
            return socket.inet_ntoa(socket.inet_aton(host))
        if ":" in host:
            # A zone is ignored, unless the address is of one link.
            address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
            if address[:1] == b"\xfe" and "%" in host:
                return host
            if address.startswith(_MAPPED):
                return socket.inet_ntoa(address.removeprefix(_MAPPED))
            return socket.inet_ntop(socket.AF_INET6, address)
    except (OSError, ValueError):  # no address
        pass
    return host


def host_named(name: str) -> str:
    """Return the host that is named (`Bücher.example.`, `[::1]`) as requests to it spell it."""
    name = name.lower().strip("[]")
    with suppress(UnicodeError):  # no such host can exist; w3lib leaves it as it is in a URL, too
        name = name.encode("idna").decode()
    return one_spelling(name)


def with_usual_spellings(named: Mapping[str, _T]) -> dict[str, _T]:
    """Return *named*, and each of its names also in the usual spelling, if that is not among them.

    A name may also be that of a download slot, which has no other spelling.
    """
    return {host_named(name): value for name, value in named.items()} | dict(named)
