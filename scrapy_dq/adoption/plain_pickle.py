"""Reads pickles of plain data, without looking up a class or function that a pickle names.

Scrapy writes protocol 4, and scrapy-redis the highest one. Pickles of older protocols may be refused, because
these protocols need names even for bytes and sets.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, NoReturn

from scrapy_dq.text import printable


class NotPlain(Exception):
    """The bytes are not a pickle of plain data; the message says why."""


def loads(pickled: bytes, max_bytes: int) -> Any:
    """Return the content of *pickled*: None, bools, numbers, text, bytes, lists, tuples, dicts, sets.

    Args:
        max_bytes: the largest size of the pickle.
    Raises:
        NotPlain: the bytes are anything else. There are no other exceptions.
    """
    if len(pickled) > max_bytes:
        raise NotPlain(f"its {len(pickled):,} bytes are more than DQ_MAX_ENTRY_BYTES = {max_bytes:,}")
    try:
        return _Plain(BytesIO(pickled)).load()
    except NotPlain:
        raise
    except Exception as error:  # the unpickler raises many kinds, also MemoryError
        reason = printable(f"{type(error).__name__}: {error}", 200)
        raise NotPlain(f"it cannot be read as a pickle of plain data ({reason})") from error


class _Plain(pickle.Unpickler):
    """An unpickler that imports nothing, and can call only `str`, which `find_class` returns for one name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class for the only name that is accepted; raise NotPlain for any other."""
        # CrawlSpider's link texts have this class: a subclass of str that also refers to an lxml element.
        if (module, name) == ("lxml.etree", "_ElementUnicodeResult"):
            return str
        raise NotPlain(
            f"it names {printable(f'{module}.{name}', 200)}, but names in a pickle are never looked up"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse an id, because its object is not in the pickle."""
        raise NotPlain("it refers to an object outside it")
