"""Finds the boundaries between RESP messages."""

from __future__ import annotations


class Framer:
    """Cuts a byte stream of commands or replies (RESP2 and RESP3) into whole messages.

    Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # the beginning of the message's next value
        self._missing = 1  # the number of values that the message still lacks; an array of n values adds n

    def feed(self, data: bytes) -> list[bytes]:
        """Add *data*. Return the messages that are now complete."""
        self._buffer += data
        messages = []
        while self._pass_value():
            if self._missing == 0:
                messages.append(bytes(self._buffer[: self._at]))
                del self._buffer[: self._at]
                self._at, self._missing = 0, 1
        return messages

    def _pass_value(self) -> bool:
        line_end = self._buffer.find(b"\r\n", self._at)
        if line_end < 0:
            return False
        kind = self._buffer[self._at : self._at + 1]
        after = line_end + 2
        if kind in b"$=!*~>%|":
            size = max(int(self._buffer[self._at + 1 : line_end]), -1)
            if kind in b"$=!":
                after += size + 2 if size >= 0 else 0
                if after > len(self._buffer):
                    return False
            elif kind in b"*~>":
                self._missing += max(size, 0)
            else:
                self._missing += 2 * max(size, 0)
        # An attribute (|) precedes a value and does not count as one.
        self._missing -= kind != b"|"
        self._at = after
        return True


def command_name(message: bytes) -> str:
    """Return the upper-case name of a command, e.g. `EVALSHA`."""
    parts = message.split(b"\r\n", 3)
    name = parts[2] if message.startswith(b"*") and len(parts) > 2 else parts[0].split(b" ")[0]
    return name.decode("ascii", "replace").upper()
