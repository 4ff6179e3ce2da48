"""Reads pickles that hold only plain data: a pickle gets none of the classes and functions that it names."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any, NoReturn

from scrapy_dq.text import printable


class NotPlain(Exception):
    """The bytes are not a pickle, or not one of plain data; the message says why."""


def loads(pickled: bytes, max_bytes: int) -> Any:
    """Return what *pickled* holds: None, bools, numbers, text, bytes, lists, tuples, dicts, sets.

    Args:
        max_bytes: the largest size of the pickle.
    Raises:
        NotPlain: for any other bytes; nothing else is raised.
    """
    if len(pickled) > max_bytes:
        raise NotPlain(f"its {len(pickled):,} bytes are more than DQ_MAX_ENTRY_BYTES = {max_bytes:,}")
    try:
        return _Plain(BytesIO(pickled)).load()
    except NotPlain:
        raise
    except Exception as error:  # of the unpickler, which raises many kinds; MemoryError included
        reason = printable(f"{type(error).__name__}: {error}", 200)
        raise NotPlain(f"it is not a complete pickle ({reason})") from error


class _Plain(pickle.Unpickler):
    """A pickle can import and call only what these methods return."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name in the pickle; raise NotPlain for all but a few."""
        try:
            return _REBUILT[f"{module.replace('__builtin__', 'builtins')}.{name}"]
        except KeyError:
            raise NotPlain(
                f"it names {printable(f'{module}.{name}', 200)}, and names in a pickle are not used"
            ) from None

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse: what an id stands for is not in the pickle."""
        raise NotPlain("it refers to an object outside of it")


def _latin_bytes(text: str, encoding: str) -> bytes:
    # Not codecs.encode itself, which imports the module of any encoding.
    if encoding not in ("latin1", "latin-1"):
        raise NotPlain("it encodes text")
    return text.encode("latin-1")


# How older protocols write bytes and sets; and link texts of CrawlSpider, whose class is a str that refers to
# its element.
_REBUILT: dict[str, Callable[..., Any]] = {
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.bytes": bytes,
    "_codecs.encode": _latin_bytes,
    "lxml.etree._ElementUnicodeResult": str,
}
