"""The log of confirmed puts, which a worker repeats if Redis was rolled back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from math import inf

from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.log import LabelledLog

logger = logging.getLogger(__name__)
LOG_LIMIT_BYTES = 64 * 1024 * 1024
FORMER_IDS = 30
"""Maximum number of former ids that a rejoin sends. More than one is necessary only while two masters answer,
during a failover."""


class ReplayLog:
    """Confirmed puts that a roll-back of Redis may lose.

    A put retires only when Redis has accepted an exchange that was sent at least *horizon_s* after the put's
    confirmation. If only time counted, the put would be lost if Redis froze and was then rolled back.

    If the log exceeds its limit, the oldest puts retire early, with a warning.

    Args:
        label: the beginning of the log lines.
        is_home: leases of start payloads, which are parents of puts with `once`, are in this frontier.
    """

    def __init__(self, horizon_s: float, label: str = "", *, is_home: bool = True) -> None:
        self._horizon_s = horizon_s
        self._is_home = is_home
        self._logger = LabelledLog(logger, label)
        self._puts: deque[tuple[float, int, Put]] = deque()
        # The number of the newest exchange under the worker's present id whose puts have retired, and the
        # number of the newest one whose puts without a parent have retired. `_before` has both numbers for
        # the first of `former_ids`.
        self._retired_seq = self._retired_parentless_seq = 0
        self._before = 0, 0
        self.former_ids: list[str] = []
        """Element 0 is the latest former id under which puts have retired, or else the worker's first id.
        The former ids after it follow, oldest first."""
        self._retired = self._retired_parentless = False
        self._bytes = 0
        self._warned = False
        self.forgettable: deque[bytes] = deque()
        """Ids of entries whose puts no worker will repeat, so that Redis may forget the tokens of these
        puts."""
        self.retired = 0
        """Number (`Put.number`) of the last put that has retired."""
        self.certain_until = -inf
        """A roll-back within the horizon can undo only confirmations that came after this moment."""

    def __bool__(self) -> bool:
        """Tell whether a roll-back within the horizon could lose a confirmed put."""
        return bool(self._puts)

    @property
    def parentless(self) -> bool:
        """Whether any put in the log has no parent lease, so that no other worker could repeat it."""
        return any(put.parent is None for put in self.puts())

    def forgot(self, last_seq: int | None) -> tuple[bool, bool]:
        """Tell whether a rolled-back Redis may have lost retired puts.

        Args:
            last_seq: see `Rejoined.last_seq`.
        Returns:
            whether some puts may be missing; whether some of the missing puts have no parent, so that no
            repeated page puts them again.
        """
        if last_seq is None:
            return self._retired, self._retired_parentless
        if last_seq < 0:
            seq, parentless_seq = self._before
            here, parentless_here = self._retired_seq > 0, self._retired_parentless_seq > 0
            return here or seq > -2 - last_seq, parentless_here or parentless_seq > -2 - last_seq
        return self._retired_seq > last_seq, self._retired_parentless_seq > last_seq

    def add(self, put: Put, confirmed_at: float, seq: int) -> None:
        """Add a put that the exchange *seq* has confirmed."""
        put.source = None
        put.fresh = False
        if put.once and put.parent and self._is_home:
            put.parent = b""  # confirmed: only this log repeats the put, not the next owner of the parent
        put.most = 0  # the put was admitted, and its repeat must not be refused
        self._puts.append((confirmed_at, seq, put))
        self._bytes += put.size
        while self._bytes > LOG_LIMIT_BYTES:
            if not self._warned:
                self._logger.warning(
                    "More than %d MiB of requests were stored within DQ_ROLLBACK_HORIZON: if Redis now loses "
                    "its newest data, this worker would not store the oldest ones again. A shorter horizon "
                    "needs less memory",
                    LOG_LIMIT_BYTES // 2**20,
                )
                self._warned = True
            self._drop()

    def retire(self, sent_at: float) -> None:
        """Retire the puts that are certain now, because Redis has accepted an exchange sent at *sent_at*."""
        self.certain_until = sent_at - self._horizon_s
        while self._puts and self.covers(self._puts[0][0], sent_at):
            self._drop()

    def covers(self, confirmed_at: float, sent_at: float) -> bool:
        """Tell whether an accepted exchange that was sent at *sent_at* makes a confirmation certain."""
        return self.certain_after(confirmed_at) <= sent_at

    @property
    def certain_at(self) -> float:
        """The earliest time at which an exchange can make the whole log certain; inf: the log is empty."""
        return self.certain_after(self._puts[-1][0]) if self._puts else inf

    def certain_after(self, confirmed_at: float) -> float:
        """Return the earliest time at which an exchange can be sent that makes a confirmation certain."""
        return confirmed_at + self._horizon_s

    def retire_all(self) -> None:
        """Retire all puts, because the worker leaves or all puts are on Redis's disk."""
        while self._puts:
            self._drop()

    def note_new_id(self, old_id: str) -> None:
        """Record that the worker gets a new id after *old_id*: its exchanges are counted from 1 again."""
        if self._retired_seq or not self.former_ids:
            self._before = self._retired_seq, self._retired_parentless_seq
            self.former_ids.clear()
        self.former_ids.append(old_id)
        del self.former_ids[1:-FORMER_IDS]
        self._retired_seq = self._retired_parentless_seq = 0

    def begin_run(self) -> None:
        """Record that the run of all retired puts is over, so that a loss of these puts does not matter."""
        self._retired = self._retired_parentless = False
        self._retired_seq = self._retired_parentless_seq = 0
        self.former_ids.clear()

    def puts(self) -> Iterator[Put]:
        """Yield the puts, oldest first."""
        return (put for *_, put in self._puts)

    def take(self) -> list[Put]:
        """Empty the log and return its puts, oldest first."""
        puts = list(self.puts())
        self._puts.clear()
        self._bytes = 0
        return puts

    def _drop(self) -> None:
        _, seq, put = self._puts.popleft()
        self.retired = put.number
        self._retired, self._retired_seq = True, seq
        if put.parent is None:
            self._retired_parentless, self._retired_parentless_seq = True, seq
        self._bytes -= put.size
        if put.once and not put.parent:  # else: see child_tokens.py
            self.forgettable.append(put.entry_id)
