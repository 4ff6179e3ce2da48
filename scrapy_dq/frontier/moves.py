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
    """Entry id of the lease whose callback yielded the request. None: the request comes from no lease, for
    example from start(). Empty: the put has `once` set and is confirmed, so its parent no longer matters."""
    source: Any = field(default=None, repr=False, compare=False)
    """An object that the owner gets back if the put is dropped as a duplicate. The worker never sends it to
    Redis, and replaces it by None if many moves wait."""
    partition: bytes = b""
    """UTF-8 without control characters, at most MAX_PARTITION_BYTES."""
    due_at: float = 0.0
    """The entry is not leased before this time, in seconds of this process's monotonic clock."""
    not_before_s: float = 0.0
    """The entry is not leased before this time, in seconds since 1970 by the clock of Redis."""
    reason: str = ""
    """Why no worker can serve the request, which immediately becomes a dead letter; empty: normal."""
    known_as: bytes = b""
    """The request's fingerprint in the scheduler whose crawl was adopted: 20 bytes; empty: none."""
    most: int = 0
    """Redis refuses the put if this many entries wait in its shard; 0: no limit. Only with Admission.ID."""
    message: bytes = b""
    """The message of a stream from which the request was made: `<stream> 0 <id>`; empty: none. Redis
    acknowledges the message when all its entries are done."""
    once: bool = field(default=False, compare=False)
    """True: no other worker can make this put again, so only this worker's replay log can repeat it. Either
    its id is random, or its parent is the lease of a start payload, which ends when this put is stored, or
    later (`Worker.note_fed`). Only with Admission.ID. When the log has retired the put, Redis forgets its
    token. But if the parent's lease is in another shard, this lease ends later than the put is stored. Then
    Redis keeps the token until the end of the lease is certain (`worker/child_tokens.py`)."""
    number: int = field(default=0, compare=False)
    """The number of this put among the worker's puts for the same shard, from 1 on; 0: not appended yet."""
    reference: int = field(default=0, compare=False)
    """The put's shard and its `number` there, combined into one int for `Worker.depends`. 0: the crawl has
    one shard, or the put is not in an outbox yet."""
    fresh: bool = field(default=True, compare=False)
    """True: Redis has certainly not stored this put before. So if Redis knows the token, the put is a
    duplicate. False: Redis may have stored this put already, so a known token proves nothing."""

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
    """True: the request was never sent to a site, so it counts neither against a budget nor as a page."""
    size: ClassVar[int] = ENTRY_ID_BYTES


@dataclass(slots=True)
class Release:
    """The entry returns to its place in the backlog; no attempt is charged."""

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
    """The work has failed, and is not tried again. The entry is gone, but Redis keeps a copy for a retry."""

    entry_id: bytes
    reason: str
    label: str
    """The URL of the request, for users and commands that cannot decode the payload."""
    never_sent: bool = False
    """See `Ack`."""

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason) + len(self.label)


@dataclass(slots=True)
class Again:
    """The work is done and will be repeated: the entry waits in `delayed`, under another id.

    A worker that was wrongly declared dead may still be working on this visit. If the id stayed the same,
    that worker could end the lease of the next visit.
    """

    entry_id: bytes
    next_id: bytes
    """Made only from `entry_id`, so that a worker that repeats the work after a loss uses the same id."""
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
    """The request's fingerprint, which a later run removes from the seen set if no worker could serve the
    request; empty: the request has no fingerprint."""

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason) + len(self.fingerprint)


@dataclass(slots=True)
class Defer:
    """The work is done. The lease ends later, when the puts of this request in other shards are retired."""

    entry_id: bytes
    size: ClassVar[int] = ENTRY_ID_BYTES


Ending = Ack | Fail | Bury | Again
"""A move that ends a lease whose work is over."""
Return = Release | Decline
"""A move that gives a lease back, because its work is not done."""
Move = Put | Return | Defer | Ending


def may_be_known(moves: Iterable[Move]) -> None:
    """Record that Redis may have applied these puts already, so a known token no longer shows a duplicate."""
    for move in moves:
        if isinstance(move, Put):
            move.fresh = False


def is_parentless(move: Move) -> bool:
    """Return whether *move* is a put without a parent lease, whose request no page would yield again."""
    return isinstance(move, Put) and move.parent is None


_KINDS: tuple[type[Move], ...] = (Put, Ack, Release, Bury, Fail, Defer, Again, Decline)
_NAMES = {kind: [f.name for f in fields(kind) if f.name not in ("source", "reference")] for kind in _KINDS}


def fields_of(move: Move) -> tuple[Any, ...]:
    """Return the number of *move*'s kind and its fields, except `source` and `reference`, for msgpack."""
    # The most frequent kinds are spelled out, because reading the fields by name is slower.
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
    """Return the move whose fields `fields_of` returned, without `source` and `reference`.

    Raises:
        IndexError, ValueError: *fields* are not the fields of a move.
    """
    kind = _KINDS[fields[0]]
    values = dict(zip(_NAMES[kind], fields[1:], strict=True))
    if kind is Put:
        values["admission"] = Admission(values["admission"])
    move: Move = kind(**values)
    return move
