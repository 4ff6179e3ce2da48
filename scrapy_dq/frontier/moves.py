"""The moves of an exchange, and their fields as they are written to disk.

wire.py encodes them for lua/moves/endings.lua.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, ClassVar

from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Admission, clamped


@dataclass(slots=True)
class Put:
    """A new entry on its way to the backlog."""

    entry_id: bytes
    admission: Admission
    token: bytes
    priority: int
    start: int
    """A StartQueue."""
    payload: bytes
    parent: bytes | None = None
    """Entry id of the lease whose callback yielded it; None: no lease; empty: not relevant any more, because
    it is `once` and confirmed."""
    source: Any = field(default=None, repr=False, compare=False)
    """Returned to the caller if the put is dropped as a duplicate; never sent, and may be None by then."""
    partition: bytes = b""
    """UTF-8 without control characters, at most MAX_PARTITION_BYTES."""
    due_at: float = 0.0
    """Earliest time of a lease, in seconds of this process's monotonic clock."""
    not_before_s: float = 0.0
    """Earliest time of a lease, in seconds since 1970 by the clock of Redis."""
    reason: str = ""
    """Why it cannot be served: it becomes a dead letter at once; empty: it can."""
    known_as: bytes = b""
    """Its fingerprint in the scheduler whose crawl was adopted: 20 bytes; empty: none."""
    most: int = 0
    """It is refused if at least this many entries wait in the crawl; only with Admission.ID. 0: no limit."""
    message: bytes = b""
    """The message of a stream from which it was made: `<stream> 0 <id>`; empty: none. The message is
    acknowledged when all its entries are done."""
    once: bool = field(default=False, compare=False)
    """Only this worker's replay log can repeat it: its id is random, or its parent's lease ends with it. Its
    token is forgotten when the log has retired it; if the lease is in another shard and ends later, when that
    end is certain (`worker/child_tokens.py`). Only with Admission.ID."""
    number: int = field(default=0, compare=False)
    """Its place among the puts of this worker for the same shard, from 1 on; 0: not appended yet."""
    reference: int = field(default=0, compare=False)
    """For `Worker.depends`: where the put is, and its number there. 0: in one frontier, or not put yet."""
    fresh: bool = field(default=True, compare=False)
    """Certainly not stored yet: if it was already seen, it is a duplicate. If False, the put itself may have
    been stored before."""

    @property
    def size(self) -> int:
        """About how many bytes the move takes in an exchange."""
        texts = len(self.payload) + len(self.token) + len(self.partition) + len(self.message)
        return texts + ENTRY_ID_BYTES + 16


@dataclass(slots=True)
class Ack:
    """The work is done; the entry is gone."""

    entry_id: bytes
    never_sent: bool = False
    """Its request was not sent to any site: it counts neither against a budget nor as a page."""
    size: ClassVar[int] = ENTRY_ID_BYTES


@dataclass(slots=True)
class Release:
    """The entry goes back to its place in the backlog; no attempt is charged."""

    entry_id: bytes
    size: ClassVar[int] = ENTRY_ID_BYTES


@dataclass(slots=True)
class Bury:
    """The entry becomes a dead letter, with the reason."""

    entry_id: bytes
    reason: str

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason)


@dataclass(slots=True)
class Fail:
    """The work has failed for good: the entry counts as settled, and a copy is kept for a retry."""

    entry_id: bytes
    reason: str
    label: str
    """The URL, shown where payloads cannot be read."""
    never_sent: bool = False
    """See `Ack`."""

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason) + len(self.label)


@dataclass(slots=True)
class Again:
    """The work is done and will be repeated: the entry waits in `delayed`, under another id.

    A worker that was taken for dead may still do the present work: with the same id, it would end the next.
    """

    entry_id: bytes
    next_id: bytes
    """Made from `entry_id` alone, so that a worker that repeats the work after a loss uses the same id."""
    payload: bytes
    """The payload of the next lease."""
    priority: int
    start: int
    """A StartQueue."""
    due_at: float
    """Earliest time of the next lease, in seconds of this process's monotonic clock."""
    never_sent: bool = False
    """See `Ack`."""

    @property
    def size(self) -> int:
        return 2 * ENTRY_ID_BYTES + len(self.payload) + 16


@dataclass(slots=True)
class Decline:
    """The code of this worker cannot serve the entry: Redis offers it to the other workers."""

    entry_id: bytes
    reason: str
    fingerprint: bytes = b""
    """Removed from the seen set if no worker can serve the request; empty: it has no fingerprint."""

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason) + len(self.fingerprint)


@dataclass(slots=True)
class Defer:
    """The work is done; the end of the lease follows when its puts in other shards are certain."""

    entry_id: bytes
    size: ClassVar[int] = ENTRY_ID_BYTES


Ending = Ack | Fail | Bury | Again
"""A move that ends a lease whose work is over."""
Return = Release | Decline
"""A move that gives a lease back: its work is not done."""
Move = Put | Return | Defer | Ending


def may_be_known(moves: Iterable[Move]) -> None:
    """Mark puts as possibly applied before, so that none of them is counted as a duplicate."""
    for move in moves:
        if isinstance(move, Put):
            move.fresh = False


def is_parentless(move: Move) -> bool:
    """Tell whether *move* is a put that only this worker can repeat."""
    return isinstance(move, Put) and move.parent is None


_KINDS: tuple[type[Move], ...] = (Put, Ack, Release, Bury, Fail, Defer, Again, Decline)
_NAMES = {kind: [f.name for f in fields(kind) if f.name not in ("source", "reference")] for kind in _KINDS}


def fields_of(move: Move) -> tuple[Any, ...]:
    """Return the number of *move*'s kind and its fields, except `source` and `reference`, for msgpack."""
    # The most frequent kinds are spelled out: reading the fields by name is slower.
    if isinstance(move, Put):
        return (
            0, move.entry_id, int(move.admission), move.token, clamped(move.priority), int(move.start),
            move.payload, move.parent, move.partition, move.due_at, move.not_before_s, move.reason,
            move.known_as, move.most, move.message, move.once, move.number, move.fresh,
        )  # fmt: skip
    if isinstance(move, Ack):
        return (1, move.entry_id, move.never_sent)
    if isinstance(move, Again):
        return (
            6, move.entry_id, move.next_id, move.payload, clamped(move.priority), int(move.start),
            move.due_at, move.never_sent,
        )  # fmt: skip
    kind = type(move)
    return (_KINDS.index(kind), *(getattr(move, name) for name in _NAMES[kind]))


def next_id(entry_id: bytes) -> bytes:
    """Return the next id of an entry whose work will be repeated (`Again.next_id`)."""
    return blake2b(b"again" + entry_id, digest_size=ENTRY_ID_BYTES).digest()


def move_of(fields: Sequence[Any]) -> Move:
    """Return the move that `fields_of` wrote; its `source` is lost.

    Raises:
        IndexError, ValueError: *fields* are not the fields of a move.
    """
    kind = _KINDS[fields[0]]
    values = dict(zip(_NAMES[kind], fields[1:], strict=True))
    if kind is Put:
        values["admission"] = Admission(values["admission"])
    move: Move = kind(**values)
    return move
