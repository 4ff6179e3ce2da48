"""Calls from other threads to the loop's thread. Each caller waits on a future in its own thread."""

from __future__ import annotations

import math
import os
import queue
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Admission
from scrapy_dq.frontier.moves import Put

if TYPE_CHECKING or not hasattr(queue, "ShutDown"):

    class ShutDown(Exception):
        """The queue was shut down or closed. Since Python 3.13 this is `queue.ShutDown`."""

else:
    ShutDown = queue.ShutDown


@dataclass(eq=False)
class Call:
    """One call. Once it is handed over, only the loop's thread uses its fields, except the future."""

    patient: bool = True
    """False: the next exchange that begins after the call, or the next error, answers the call."""
    after: int = 0
    """Number of exchanges that were composed before the call. Only a later exchange answers the call."""
    future: Future[Any] = field(default_factory=Future)

    def answer(self, value: Any = None) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Get(Call):
    """Waits for one item; the answer is (entry id, item)."""


class ReadCensus(Call):
    """Waits for a census taken after the call."""


class Join(Call):
    """Waits until nothing is left to do in the whole crawl."""


@dataclass(eq=False)
class Flush(Call):
    """Waits until everything that was put is on Redis's disk."""

    deadline: float = math.inf
    """Monotonic time."""


@dataclass(eq=False)
class Putting(Call):
    """Waits for the confirmation that all of *puts* are stored."""

    puts: Sequence[Put] = ()
    unstored: int = 0
    """How many of the puts are not confirmed."""

    def stored(self) -> None:
        """Record that one of the puts is confirmed."""
        self.unstored -= 1
        if not self.unstored:
            self.answer()


def putting(payloads: Iterable[bytes], *, patient: bool) -> Putting:
    """Return a call that stores *payloads*, in order."""
    puts = [_put(payload) for payload in payloads]
    return Putting(patient=patient, puts=puts, unstored=len(puts))


def _put(payload: bytes) -> Put:
    # With random ids, two equal items are stored as two, but repeats of a put are stored once.
    entry_id = os.urandom(ENTRY_ID_BYTES)
    return Put(entry_id, Admission.ID, entry_id, 0, False, payload, once=True)
