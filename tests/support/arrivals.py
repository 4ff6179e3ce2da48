"""The arrival times of bytes as the kernel reports them. A busy site that reads late does not change them."""

from __future__ import annotations

import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35
"""Linux's number of the socket option for arrival times. On other systems, the time of reading is used."""
TIMESPEC = struct.Struct("@ll")


class StampedSocket(socket.socket):
    """Keeps the arrival time of the bytes that were read last, as the kernel reports it."""

    arrived_s = 0.0
    """The arrival time by `time.monotonic()`. The class has the time of the socket that was read last."""
    _real_ahead_s = 0.0

    @classmethod
    def set_clock(cls) -> None:
        """Measure the offset between the kernel's real time and monotonic time."""
        tries = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(50)]
        before, real, after = min(tries, key=lambda t: t[2] - t[0])
        cls._real_ahead_s = real - (before + after) / 2

    def accept(self) -> tuple[socket.socket, object]:
        """Return a connection that also keeps arrival times. Source: socket.socket"""
        connection, address = super().accept()
        return StampedSocket(fileno=connection.detach()).stamped(), address

    def stamped(self) -> StampedSocket:
        """Let the kernel report arrival times. Return this socket."""
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        return self

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Read, and keep the arrival time of the last byte or a FIN. Source: socket.socket"""
        data, notes, _, _ = self.recvmsg(bufsize, socket.CMSG_SPACE(TIMESPEC.size), flags)
        arrived_s = time.monotonic()
        for level, kind, value in notes:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = TIMESPEC.unpack(value)
                arrived_s = seconds - self._real_ahead_s + nanoseconds / 1e9
        self.arrived_s = StampedSocket.arrived_s = arrived_s
        return data


def listener(address: str, port: int) -> StampedSocket:
    """Return a socket that listens at *address*. Port 0 means any free port."""
    sock = StampedSocket().stamped()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    return sock
