"""How often somebody asked to stop: Ctrl-C, SIGTERM, a terminal that was closed."""

from __future__ import annotations

import math
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts; nobody is interrupted by it."""

    count = 0
    most = math.inf
    """One more ends this process."""

    def listen(self) -> None:
        """Count these signals from now on, in place of what they do otherwise.

        Until this process is gone: one that comes as it ends must not change how it ends.
        """
        for number in SIGNALS:
            signal.signal(number, self._count)

    def _count(self, number: int, frame: object) -> None:
        # A terminal or session that ends may say so twice, or after SIGTERM: that is no second demand.
        if number != signal.SIGHUP or not self.count:
            self.count += 1
        if self.count > self.most:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
