"""Counts requests to stop: Ctrl-C, SIGTERM, a closed terminal."""

from __future__ import annotations

import atexit
import math
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts signals; they interrupt nothing."""

    count = 0
    most = math.inf
    """If `count` exceeds this, the signal ends the process."""

    def listen(self) -> None:
        """Count these signals from now on, in place of their default action.

        Until the process exits: a signal that arrives at its end must not change its exit status.
        """
        for number in SIGNALS:
            signal.signal(number, self._count)
        # After this, Python itself would replace handlers that are functions by the default action.
        atexit.register(_ignore)

    def _count(self, number: int, frame: object) -> None:
        # A closing terminal or session may send SIGHUP twice, or after SIGTERM: this is not a second request.
        if number != signal.SIGHUP or not self.count:
            self.count += 1
        if self.count > self.most:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
