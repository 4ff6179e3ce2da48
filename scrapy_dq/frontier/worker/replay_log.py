"""The log of confirmed puts, for a Redis that comes back older."""

from __future__ import annotations

import logging
from collections import deque

from scrapy_dq.frontier.model import Put

logger = logging.getLogger(__name__)
LOG_LIMIT_BYTES = 64 * 1024 * 1024


class ReplayLog:
    """Confirmed puts that a Redis which comes back older may have forgotten.

    An entry retires only when an exchange sent at least `horizon_s` after its confirmation has itself
    been accepted; by the clock alone, a freeze followed by a step back of Redis would lose it.
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._puts: deque[tuple[float, int, Put]] = deque()
        # The newest exchange, under the worker's present id, of which a put, or one without parent, retired.
        self._retired_seq = self._retired_parentless_seq = 0
        self._retired = self._retired_parentless = False
        self._bytes = 0
        self._warned = False
        self.forgettable: deque[bytes] = deque()
        """Ids of puts that no other worker could repeat, and that this one does not repeat any more."""

    @property
    def parentless(self) -> bool:
        """Tell whether a put is among them that no lease stood for."""
        return any(put.parent is None for *_, put in self._puts)

    def forgot(self, last_seq: int | None) -> tuple[bool, bool]:
        """Tell what of the puts that retired is not stored in a Redis that was rolled back.

        Args:
            last_seq: the newest exchange under the worker's present id that Redis knows; None: it does not
                know the id.
        Returns:
            whether some may be missing; whether some of these had no parent: nothing brings them again.
        """
        if last_seq is None:
            return self._retired, self._retired_parentless
        return self._retired_seq > last_seq, self._retired_parentless_seq > last_seq

    def add(self, put: Put, confirmed_at: float, seq: int) -> None:
        """Take in a put that the exchange number *seq* confirmed."""
        put.source = None
        put.fresh = False
        if put.once and put.parent:
            put.parent = b""  # confirmed: only this log brings it again, whoever has its parent's lease now
        put.most = 0  # it was let in; stored again, it must not be turned away
        self._puts.append((confirmed_at, seq, put))
        self._bytes += put.size
        while self._bytes > LOG_LIMIT_BYTES:
            if not self._warned:
                logger.warning(
                    "More than %d MiB of requests were stored within DQ_ROLLBACK_HORIZON: if Redis now loses "
                    "its newest data, the oldest of these would not be stored again. A shorter horizon "
                    "needs less memory",
                    LOG_LIMIT_BYTES // 2**20,
                )
                self._warned = True
            self._drop()

    def retire(self, sent_at: float) -> None:
        """Note that an exchange sent at *sent_at* was accepted."""
        while self._puts and self._puts[0][0] + self._horizon_s <= sent_at:
            self._drop()

    def retire_all(self) -> None:
        """Note that this worker leaves, and repeats nothing any more."""
        while self._puts:
            self._drop()

    def begin_anew(self) -> None:
        """Note that the worker has another id from now on: its exchanges are counted from 1."""
        self._retired_seq = self._retired_parentless_seq = 0

    def take(self) -> list[Put]:
        """Empty the log and return its puts, oldest first."""
        puts = [put for *_, put in self._puts]
        self._puts.clear()
        self._bytes = 0
        return puts

    def _drop(self) -> None:
        _, seq, put = self._puts.popleft()
        self._retired, self._retired_seq = True, seq
        if put.parent is None:
            self._retired_parentless, self._retired_parentless_seq = True, seq
        self._bytes -= put.size
        if put.once:
            self.forgettable.append(put.entry_id)
