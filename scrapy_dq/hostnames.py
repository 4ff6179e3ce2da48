"""Spellings of hosts. A page can spell the same host in many ways, and link to hosts of any length."""

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
"""The first bytes of an IPv4 address in the form of IPv6."""

LONGEST_LABEL = 63
"""Maximum number of characters between two dots of a host name."""
LONGEST_HOST = 1_000
"""Maximum number of characters of a URL's host with its port; real hosts and ports have at most 259."""


def bound_punycode() -> None:
    """Make this process refuse punycode conversions of texts that are longer than a label can be.

    Python's time grows with the square of the length: a minute for a link to a host of 20,000 Chinese
    letters, and hours for a page whose charset is "punycode". Scrapy converts both before this package sees
    them, so the refusal has to be in Python's own functions. They then raise UnicodeError. w3lib leaves such
    a host unchanged, and `check_host` (codec/attributes.py) refuses the URL. For such a page, Scrapy reports
    that it cannot decode the page.
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
    """Tell whether *name* is an address of this machine that other machines cannot reach."""
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def canonical_host(host: str) -> str:
    """Return the usual spelling of a host.

    For example, 127.2, 0x7f000002 and 2130706434 are other spellings of 127.0.0.2. A name may end with a dot.
    """
    if host.endswith("."):
        host = host[:-1] or host
    try:
        if host.rpartition(".")[2][:1].isdigit() and _is_numeric(host):
            return socket.inet_ntoa(socket.inet_aton(host))
        if ":" in host:
            # The zone after a % has a meaning only in a link-local address.
            address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
            if address[:1] == b"\xfe" and "%" in host:
                return host
            if address.startswith(_MAPPED):
                return socket.inet_ntoa(address.removeprefix(_MAPPED))
            return socket.inet_ntop(socket.AF_INET6, address)
    except (OSError, ValueError):  # not an address
        pass
    return host


def host_named(name: str) -> str:
    """Return a host (`Bücher.example.`, `[::1]`) in the spelling that requests have."""
    name = name.lower().strip("[]")
    with suppress(UnicodeError):  # no such host can exist; w3lib also leaves it unchanged in a URL
        name = name.encode("idna").decode()
    return canonical_host(name)


def with_canonical_hosts(named: Mapping[str, _T]) -> dict[str, _T]:
    """Return *named*, with each value also under the usual spelling of its host.

    A name in *named* takes precedence over an equal spelling of another name. Each name stays also in its own
    spelling, because it may be the name of a download slot.
    """
    return {host_named(name): value for name, value in named.items()} | dict(named)
