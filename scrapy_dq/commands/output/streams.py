"""Standard streams that outlast their readers: what cannot be printed does not change what is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class LastingStream:
    """A text stream that goes on into nothing once it cannot be written any more; `error` says why."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write, or lose, *text*."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of *lines*."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is still held back."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = self.error or error
        # What the stream still holds would fail once more as Python ends, with exit status 120.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[list[OSError]]:
    """Have both standard streams last; in the list is, in the end, why standard output did not take all.

    Whoever reads it and goes away has seen enough: that is no reason.
    """
    before = sys.stdout, sys.stderr
    lasting = [stream and LastingStream(stream) for stream in before]  # None: it is closed
    sys.stdout, sys.stderr = cast("list[TextIO]", lasting)
    errors: list[OSError] = []
    try:
        yield errors
    finally:
        sys.stdout, sys.stderr = before
        for stream in lasting:
            if stream:
                stream.flush()
        out = lasting[0]
        if out and out.error and not isinstance(out.error, BrokenPipeError):
            errors.append(out.error)


def nobody_reads() -> bool:
    """Tell whether standard output, made to last, has nobody or nothing any more that takes it."""
    return getattr(sys.stdout, "error", None) is not None
