"""The first byte of an entry: what its payload is. A number keeps its meaning for ever."""

from __future__ import annotations

REQUEST = 1
"""A msgpack map of a request's attributes: `codec/requests.py`."""
PAYLOAD = 2
"""What somebody put under a start key, as it was there."""
ITEM = 3
"""What a program put into a Queue, packed: `codec/items.py`."""
SERIALIZED = 4
"""A request's attributes as SCHEDULER_SERIALIZER wrote them: `codec/serializer.py`."""
SIGNED = 5
"""A signature, and an entry of these: `frontier/signing.py`."""
