"""The outbox: a worker's ordered log of moves that are not confirmed yet, and the log of those that are."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice

from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    MAX_EXCHANGE_BYTES,
    MAX_MOVES,
    Bury,
    Move,
    Put,
)

logger = logging.getLogger(__name__)
LOG_LIMIT_BYTES = 64 * 1024 * 1024


class Outbox:
    """Moves in the order in which they were made; Redis takes prefixes of it.

    Children stand before the ack of their parent, so a parent is never forgotten before its
    children are stored.
    """

    def __init__(self) -> None:
        self._moves: deque[Move] = deque()
        self._bytes = 0
        self._parentless = 0

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves)

    @property
    def full(self) -> bool:
        """More than one exchange would carry."""
        return len(self._moves) >= MAX_MOVES or self._bytes >= MAX_EXCHANGE_BYTES

    @property
    def parentless(self) -> int:
        """Puts that no lease stands for: only this outbox knows of them."""
        return self._parentless

    def append(self, move: Move) -> None:
        self._moves.append(move)
        self._bytes += _size(move)
        self._parentless += _is_parentless(move)

    def prefix(self) -> list[Move]:
        """Return the moves of the next exchange: at most MAX_MOVES and about MAX_EXCHANGE_BYTES."""
        total = 0
        taken: list[Move] = []
        for move in islice(self._moves, MAX_MOVES):
            total += _size(move)
            if taken and total > MAX_EXCHANGE_BYTES:
                break
            taken.append(move)
        return taken

    def confirm(self, prefix: Collection[Move]) -> None:
        """Forget a prefix that Redis has applied."""
        for _ in prefix:
            move = self._moves.popleft()
            self._bytes -= _size(move)
            self._parentless -= _is_parentless(move)

    def replay(self, log: list[Put], owned: Collection[bytes]) -> None:
        """Rebuild after a rejoin: log first, and nothing that settles what is not owned any more.

        A release that was queued before the rejoin is among these: rejoin gave its lease back.
        """
        kept = [m for m in self._moves if isinstance(m, Put) or m.entry_id in owned]
        self.clear()
        for move in (*log, *kept):
            self.append(move)

    def clear(self) -> None:
        """Forget everything: the run is over, and nobody takes it."""
        self._moves.clear()
        self._bytes = self._parentless = 0


class PutLog:
    """Confirmed puts that a Redis which comes back older may have forgotten.

    An entry retires only when an exchange sent at least `horizon_s` after its confirmation has itself
    been accepted; by the clock alone, a freeze followed by a step back of Redis would lose it.
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._puts: deque[tuple[float, Put]] = deque()
        self._bytes = 0
        self._warned = False

    def add(self, put: Put, confirmed_at: float) -> None:
        put.source = None
        self._puts.append((confirmed_at, put))
        self._bytes += _size(put)
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

    def take(self) -> list[Put]:
        """Empty the log and return its puts, oldest first."""
        puts = [put for _, put in self._puts]
        self._puts.clear()
        self._bytes = 0
        return puts

    def _drop(self) -> None:
        self._bytes -= _size(self._puts.popleft()[1])


def _size(move: Move) -> int:
    if isinstance(move, Put):
        return len(move.payload) + len(move.token) + ENTRY_ID_BYTES + 16
    return ENTRY_ID_BYTES + (len(move.reason) if isinstance(move, Bury) else 0)


def _is_parentless(move: Move) -> bool:
    return isinstance(move, Put) and move.parent is None
