"""The first byte of an entry is the format of its payload. A number never changes its meaning."""

from __future__ import annotations

from scrapy_dq.codec.unfit import Unfit

REQUEST = 1
"""A msgpack map of a request's attributes: `codec/requests.py`."""
PAYLOAD = 2
"""A start payload: bytes from a start key, unchanged."""
ITEM = 3
"""An item that a program put into a Queue, packed: `codec/items.py`."""
SERIALIZED = 4
"""A request's attributes as SCHEDULER_SERIALIZER wrote them: `codec/serializer.py`."""
TRACED = 7
"""The ids of a trace (16 bytes) and a span (8), then an entry of format 1 or 4: `scheduling/tracing.py`."""
FROM_STREAM = 8
"""The stream and id of a message, and then the entry that was made from this message, in any other format:
`frontier/messages.py`."""
TRACE_BYTES = 24
_TRACED_MARK = bytes((TRACED,))


def untraced(payload: bytes) -> bytes:
    """Return *payload* without the ids of its trace, if it has any."""
    return payload[1 + TRACE_BYTES :] if payload[:1] == _TRACED_MARK else payload


def check_size(payload: bytes, max_bytes: int) -> None:
    """Raise Unfit if *payload* is larger than DQ_MAX_ENTRY_BYTES."""
    if len(payload) > max_bytes:
        raise Unfit(f"{len(payload):,} bytes are more than DQ_MAX_ENTRY_BYTES = {max_bytes:,}")
