"""The spelling of hosts: a page can link to one address under names without number."""

from __future__ import annotations

import re
import socket
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from encodings import idna, punycode
from typing import Any, TypeVar

_T = TypeVar("_T")
_is_numeric = re.compile(r"(?:(?:0x[0-9a-f]+|[0-9]+)(?:\.(?!$)|$)){1,4}", re.IGNORECASE).fullmatch
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address that is written as one of IPv6."""

LONGEST_LABEL = 63
"""Characters between two dots of a host name."""
LONGEST_HOST = 255
"""Characters of a host name, with some room; of a URL's host with user and password, if it is not ASCII."""


def bound_host_names() -> None:
    """Have no host in this process take longer than a real one: call it before URLs of others are read.

    Python and w3lib need the square of its length to write a host beyond ASCII as punycode (a minute for
    20,000 letters), to read such a text (hours, for a page that claims to be written in it) and to normalize
    it (ten minutes for 1 MB of accents, without letting go of the GIL). Not each link is checked instead:
    Scrapy encodes those of pages before this package sees them. What is too long is left as it is, or raises
    UnicodeError, so that w3lib leaves it: `check_host` (codec/attributes.py) then refuses it.
    """
    for module, name, longest, instead in (
        (punycode, "punycode_encode", LONGEST_LABEL, _refuse),
        (punycode, "punycode_decode", LONGEST_LABEL, _refuse),
        (idna, "nameprep", LONGEST_HOST, _refuse),
        (urllib.parse, "_checknetloc", LONGEST_HOST, _accept),
        (sys.modules.get("w3lib._url"), "_nfkc_netloc", LONGEST_HOST, _leave),  # since 2.5
    ):
        convert = getattr(module, name, None)
        if convert is not None and not getattr(convert, "is_bounded", False):
            setattr(module, name, _bounded(convert, longest, instead))


def _bounded(convert: Callable[..., Any], longest: int, instead: Callable[[Any], Any]) -> Callable[..., Any]:
    def bounded(text: Any, *args: Any) -> Any:
        return convert(text, *args) if len(text) <= longest else instead(text)

    bounded.is_bounded = True  # type: ignore[attr-defined]
    return bounded


def _refuse(text: Any) -> None:
    raise UnicodeError(f"{len(text):,} characters are too many for a host name")


def _accept(netloc: str) -> None:
    """As `_checknetloc` does with what changes nothing when it is normalized."""


def _leave(netloc: str) -> tuple[str, str]:
    return netloc, netloc


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
