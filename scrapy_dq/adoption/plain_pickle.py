"""Reads pickles that hold only plain data: a pickle gets none of the classes and functions that it names.

Scrapy writes protocol 4, and scrapy-redis the highest one. Older protocols have names for bytes and sets.
"""

from __future__ import annotations

import pickle
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
        """Return what stands for a name in the pickle; raise NotPlain for all but one."""
        # Link texts of CrawlSpider: their class is a str that refers to its element.
        if (module, name) == ("lxml.etree", "_ElementUnicodeResult"):
            return str
        raise NotPlain(f"it names {printable(f'{module}.{name}', 200)}, and names in a pickle are not used")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse: what an id stands for is not in the pickle."""
        raise NotPlain("it refers to an object outside of it")
