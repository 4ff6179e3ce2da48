"""Converts items of a Queue to bytes and back; also decodes the other entries that a crawl may contain."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from scrapy_dq.codec import formats
from scrapy_dq.codec.attributes import CLASS, NAMES
from scrapy_dq.codec.classes import Classes
from scrapy_dq.codec.refusing import CannotDecode, CannotEncode, refusing
from scrapy_dq.codec.short import lengthen
from scrapy_dq.codec.unfit import Unfit, Unknown
from scrapy_dq.codec.values import Values


class ForeignEntry(CannotDecode):
    """This program cannot read the entry, but other members may. The entry must not become a dead letter."""


class Items:
    """Encodes and decodes the items of a program, in any thread."""

    def __init__(self, types: Sequence[str], max_bytes: int) -> None:
        """Allow plain Python values and some classes.

        Args:
            types: dotted names of classes whose instances items may hold (DQ_TYPES).
            max_bytes: maximum size of an entry that is written or read (DQ_MAX_ENTRY_BYTES).
        """
        self._values = Values(Classes(set(), types), max_bytes)
        self._max_bytes = max_bytes
        self._converting = threading.Lock()

    def encode(self, item: Any) -> bytes:
        """Return the payload of *item*; raise only CannotEncode, whatever the item is."""
        with refusing(CannotEncode, CannotEncode):
            with self._converting:
                payload = bytes((formats.ITEM,)) + self._values.pack(self._values.lower(item))
            formats.check_size(payload, self._max_bytes)
        return payload

    def decode(self, payload: bytes) -> Any:
        """Return the content of a payload; raise only CannotDecode, whatever the bytes are.

        A stored request becomes a dict of its attributes, with callbacks by name; a start payload becomes
        bytes.

        Raises:
            ForeignEntry: the payload needs a class, or a serializer, that this program does not have.
        """
        with refusing(ForeignEntry, lacking=Unknown), self._converting:
            payload = formats.untraced(payload)
            formats.check_size(payload, self._max_bytes)
            kind = payload[0] if payload else None
            if kind == formats.ITEM:
                return self._values.lift(self._values.unpack(payload[1:]))
            if kind == formats.REQUEST:
                return self._attributes(lengthen(self._values.unpack(payload[1:])))
            if kind == formats.SERIALIZED:
                raise Unknown("a SCHEDULER_SERIALIZER has written it; only spiders read that format")
            if kind == formats.PAYLOAD:
                return payload[1:]
            raise Unfit(f"its format is {kind}, which this version does not read")

    def _attributes(self, entry: dict[Any, Any]) -> dict[str, Any]:
        found = {}
        for key, value in entry.items():
            name = key if type(key) is str else NAMES.get(key)
            if name is not None:
                found[name] = self._values.lift(value)
            elif key != CLASS:
                raise Unfit(f"this version does not know the attribute {key!a:.100}")
        return found
