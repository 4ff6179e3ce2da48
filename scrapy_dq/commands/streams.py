"""Keep standard streams usable after their reader is gone, and treat Ctrl-C as a normal end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Treat Ctrl-C and SIGTERM as the normal end of a command that has no other end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


class LastingStream:
    """A text stream that discards everything after a write has failed; `error` is the first failure."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write *text*, or discard it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = self.error or error
        # Otherwise Python would try to flush the buffer again when it exits, fail, and exit with status 120.
        with suppress(OSError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[LastingStream | None]:
    """Wrap standard output and standard error; yield the wrapped standard output, or None if it is closed."""
    before = sys.stdout, sys.stderr
    lasting = [LastingStream(stream) if stream else None for stream in before]  # None: it was closed
    sys.stdout, sys.stderr = cast("list[TextIO]", lasting)
    try:
        yield lasting[0]
    finally:
        sys.stdout, sys.stderr = before
        for stream in lasting:
            if stream:
                stream.flush()


def output_closed() -> bool:
    """Return whether a write to standard output, wrapped by `lasting_streams`, has failed."""
    return getattr(sys.stdout, "error", None) is not None
