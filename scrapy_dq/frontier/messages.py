"""The stored payload of an entry that was made from a message of a stream. Source: lua/lib/messages.lua"""

from __future__ import annotations

FROM_STREAM = b"\x08"
"""The first byte of such a payload. The length of `Put.message` (2 bytes), `Put.message` itself, and the
actual payload follow."""


def apart(stored: bytes) -> tuple[bytes, bytes]:
    """Split a *stored* payload into its message (`Put.message`; empty: none) and the payload itself."""
    if not stored.startswith(FROM_STREAM):
        return b"", stored
    begin = len(FROM_STREAM) + 2 + int.from_bytes(stored[1:3], "big")
    return stored[3:begin], stored[begin:]


def joined(message: bytes, payload: bytes) -> bytes:
    """Return the stored form of a message and its payload; the reverse of `apart`."""
    return FROM_STREAM + len(message).to_bytes(2, "big") + message + payload if message else payload
