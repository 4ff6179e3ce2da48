"""The outbox of a worker: an ordered log of the moves that Redis has not confirmed yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.worker.spill import Spill

MEMORY_MOVES = 20_000
MEMORY_BYTES = 16 * 1024 * 1024
"""Maximum numbers of moves and bytes in the head of the outbox; further moves wait on disk."""
CHUNK_MOVES = MAX_MOVES
CHUNK_BYTES = MAX_EXCHANGE_BYTES


class Outbox:
    """Moves in the order in which they were made. Exchanges apply prefixes of this log.

    Children come before the ack of their parent, so a parent is never acked before its children are stored.

    The oldest moves are in memory (`_head`), the next ones on disk, in chunks (`_spill`). The newest moves
    are in memory again (`_tail`) until they fill a chunk; if they cannot be written to disk, they stay in
    memory.

    Args:
        spill_dir: the folder for moves on disk; "": the system's folder for temporary files.
    """

    def __init__(self, spill_dir: str = "") -> None:
        self._spill = Spill(spill_dir)
        self.confirmed = 0
        """Total number of moves that Redis has applied."""
        self.last_put = 0
        """Number of the last put (`Put.number`)."""
        self._reset()

    def _reset(self) -> None:
        self._head: deque[Move] = deque()
        self._tail: list[Move] = []
        self._head_bytes = self._tail_bytes = 0
        self._tail_due = (0, 0)
        """Moves and bytes in the tail when the last write failed. The next try comes when the tail has grown
        by another chunk."""
        # For each call of `_rebuild`: how many of the chunks that were on disk at that time are still there,
        # and a function that tells which moves of these chunks to keep.
        self._filters: list[tuple[int, Callable[[Move], bool]]] = []
        # Totals over memory and disk.
        self._count = self._bytes = 0
        self.puts = 0
        self.parentless = 0
        """Number of puts without a parent lease, which no other worker could repeat."""

    def __len__(self) -> int:
        return self._count

    @property
    def appended(self) -> int:
        """Number of moves appended so far, without dropped ones. Puts that a rejoin repeats count again."""
        return self.confirmed + self._count

    @property
    def full(self) -> bool:
        """Whether the moves fill an exchange."""
        return self._count >= MAX_MOVES or self._bytes >= MAX_EXCHANGE_BYTES

    def append(self, move: Move) -> None:
        if isinstance(move, Put):
            self.last_put += 1
            move.number = self.last_put
            if self._count >= MAX_MOVES:
                move.source = None  # the source is large, and can be decoded again
            self.puts += 1
            self.parentless += move.parent is None
        size = move.size
        self._count += 1
        self._bytes += size
        full = len(self._head) >= MEMORY_MOVES or self._head_bytes >= MEMORY_BYTES
        if not (self._tail or self._spill or full):
            self._head.append(move)
            self._head_bytes += size
            return
        self._tail.append(move)
        self._tail_bytes += size
        due_moves, due_bytes = self._tail_due
        if len(self._tail) >= due_moves + CHUNK_MOVES or self._tail_bytes >= due_bytes + CHUNK_BYTES:
            self._spill_tail()

    def prefix(self, until: int | None = None) -> list[Move]:
        """Return the moves of the next exchange: at most MAX_MOVES and about MAX_EXCHANGE_BYTES.

        Args:
            until: an earlier value of `appended`, which excludes later moves. None: no limit.
        Raises:
            SpillLost: moves on disk are gone, so that later moves must not be sent.
        """
        most = MAX_MOVES if until is None else max(0, min(MAX_MOVES, until - self.confirmed))
        self._refill()
        total = 0
        taken: list[Move] = []
        for move in islice(self._head, most):
            total += move.size
            if taken and total > MAX_EXCHANGE_BYTES:
                break
            taken.append(move)
        return taken

    def confirm(self, prefix: Collection[Move]) -> None:
        """Remove a prefix that Redis has applied."""
        self.confirmed += len(prefix)
        for _ in prefix:
            self._head.popleft()
        self._head_bytes -= self._account(prefix, -1)

    def replay(self, log: list[Put], owned: Collection[bytes]) -> None:
        """Rebuild after a rejoin: insert the log at the front, drop moves that settle leases not in *owned*.

        This also drops releases that were queued before the rejoin, because the rejoin has released these
        leases.
        """
        self._rebuild(log, lambda move: _outlives(move, owned))

    def drop_parentless(self) -> None:
        """Drop the puts without a parent. Call this only while no exchange with such puts is under way."""
        self._rebuild((), lambda move: not (isinstance(move, Put) and move.parent is None))

    def puts_in_memory(self) -> Iterator[Put]:
        """Yield the puts in memory, in order."""
        return (move for move in chain(self._head, self._tail) if isinstance(move, Put))

    def clear(self) -> None:
        """Drop all moves, and remove the files."""
        self._spill.close()
        self._reset()

    def _rebuild(self, first: Sequence[Move], keep: Callable[[Move], bool]) -> None:
        """Drop the moves for which *keep* is False, and insert *first* at the front.

        Moves on disk are dropped when they are read.
        """
        if self._spill:
            # Reading the moves on disk now might take seconds.
            self._filters.append((len(self._spill), keep))
        self._account(first, 1)
        self._head = deque((*first, *self._kept(self._head, keep)))
        self._tail = self._kept(self._tail, keep)
        self._head_bytes, self._tail_bytes = _total(self._head), _total(self._tail)
        self._tail_due = (0, 0)

    def _spill_tail(self) -> None:
        while self._tail:
            chunk: list[Move] = []
            room = CHUNK_BYTES
            for move in self._tail[:CHUNK_MOVES]:
                room -= move.size
                if chunk and room < 0:
                    break
                chunk.append(move)
            if not self._spill.push(chunk):
                # Trying again with each further move would be too slow.
                self._tail_due = (len(self._tail), self._tail_bytes)
                return
            del self._tail[: len(chunk)]
            self._tail_bytes -= _total(chunk)
        self._tail_due = (0, 0)

    def _refill(self) -> None:
        while len(self._head) < MAX_MOVES and self._head_bytes < MAX_EXCHANGE_BYTES:
            if self._spill:
                moves = self._spill.pop()
                for _, keep in self._filters:
                    moves = self._kept(moves, keep)
                self._filters = [(left - 1, keep) for left, keep in self._filters if left > 1]
            elif self._tail:
                moves, self._tail, self._tail_bytes = self._tail, [], 0
                self._tail_due = (0, 0)
            else:
                break
            self._head.extend(moves)
            self._head_bytes += _total(moves)

    def _kept(self, moves: Iterable[Move], keep: Callable[[Move], bool]) -> list[Move]:
        kept: list[Move] = []
        dropped: list[Move] = []
        for move in moves:
            (kept if keep(move) else dropped).append(move)
        self._account(dropped, -1)
        return kept

    def _account(self, moves: Collection[Move], sign: int) -> int:
        """Add *moves* to the totals, or subtract them; return their bytes."""
        size = 0
        for move in moves:
            size += move.size
            if isinstance(move, Put):
                self.puts += sign
                self.parentless += sign * (move.parent is None)
        self._count += sign * len(moves)
        self._bytes += sign * size
        return size


def _total(moves: Collection[Move]) -> int:
    return sum(move.size for move in moves)


def _outlives(move: Move, owned: Collection[bytes]) -> bool:
    """Tell whether *move* must still be sent after a rejoin that left the worker with the leases *owned*."""
    if not isinstance(move, Put):
        return move.entry_id in owned
    # A put with `once` depends on its parent's lease. If another worker has that lease now, that worker makes
    # the put, and Redis soon forgets the token. Then Redis would store our put as a second entry.
    return not (move.once and move.parent) or move.parent in owned
