"""How often somebody asked to stop: Ctrl-C, SIGTERM, a terminal that was closed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """Counts; nobody is interrupted by it."""

    count = 0

    @contextmanager
    def counted(self) -> Iterator[Stops]:
        """Count these signals, in place of what they do otherwise."""
        before = {number: signal.signal(number, self._count) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, what in before.items():
                signal.signal(number, what)

    def _count(self, number: int, frame: object) -> None:
        # A terminal or session that ends may say so twice, or after SIGTERM: that is no second demand.
        if number != signal.SIGHUP or not self.count:
            self.count += 1
