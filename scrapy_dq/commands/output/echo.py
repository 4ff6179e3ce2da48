"""Prevents a terminal from echoing ^C into the live view."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def without_control_echo(stream: IO[str]) -> Iterator[None]:
    """Switch off the echo of control characters (ECHOCTL) of a terminal, and on again at the end."""
    try:
        terminal = stream.fileno()
        # A background process that changes its terminal is stopped.
        before = termios.tcgetattr(terminal)[3] if os.tcgetpgrp(terminal) == os.getpgrp() else 0
    except (OSError, ValueError, termios.error):
        before = 0
    if not before & termios.ECHOCTL:
        yield
        return
    _set(terminal, before & ~termios.ECHOCTL)
    try:
        yield
    finally:
        with suppress(OSError):
            if os.tcgetpgrp(terminal) == os.getpgrp():
                _set(terminal, before)


def _set(terminal: int, local: int) -> None:
    with suppress(termios.error):
        attributes = termios.tcgetattr(terminal)
        # Other modes may have been changed meanwhile: they stay.
        echo = local & termios.ECHOCTL
        attributes[3] = attributes[3] & ~termios.ECHOCTL | echo
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
