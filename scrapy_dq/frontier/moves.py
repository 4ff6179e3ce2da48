"""The fields of a move, as they are written to disk. wire.py makes of them what lua/lib/moves.lua reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any

from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    Ack,
    Admission,
    Again,
    Bury,
    Decline,
    Defer,
    Fail,
    Move,
    Put,
    Release,
    clamped,
)

_KINDS: tuple[type[Move], ...] = (Put, Ack, Release, Bury, Fail, Defer, Again, Decline)
_NAMES = {kind: [f.name for f in fields(kind) if f.name != "source"] for kind in _KINDS}


def fields_of(move: Move) -> tuple[Any, ...]:
    """Return the number of the kind of *move*, and all its fields but `source`, as msgpack values."""
    # Spelled out: every move of a crawl passes here, and reading the fields by name is slower.
    if isinstance(move, Put):
        return (
            0, move.entry_id, int(move.admission), move.token, clamped(move.priority), int(move.start),
            move.payload, move.parent, move.partition, move.due_at, move.not_before_s, move.reason,
            move.known_as, move.most, move.message, move.once, move.number, move.fresh,
        )  # fmt: skip
    if isinstance(move, Ack):
        return (1, move.entry_id, move.never_sent)
    if isinstance(move, Release):
        return (2, move.entry_id)
    if isinstance(move, Bury):
        return (3, move.entry_id, move.reason)
    if isinstance(move, Fail):
        return (4, move.entry_id, move.reason, move.label, move.never_sent)
    if isinstance(move, Defer):
        return (5, move.entry_id)
    if isinstance(move, Again):
        return (
            6, move.entry_id, move.next_id, move.payload, clamped(move.priority), int(move.start),
            move.due_at, move.never_sent,
        )  # fmt: skip
    if isinstance(move, Decline):
        return (7, move.entry_id, move.reason, move.fingerprint)
    raise TypeError(f"not a move: {move!r}")


def next_id(entry_id: bytes) -> bytes:
    """Return the id of an entry whose work is to be done again (`Again.next_id`)."""
    return blake2b(b"again" + entry_id, digest_size=ENTRY_ID_BYTES).digest()


def move_of(fields: Sequence[Any]) -> Move:
    """Return the move that `fields_of` wrote; its `source` is lost.

    Raises:
        IndexError, ValueError: *fields* are not those of a move.
    """
    kind = _KINDS[fields[0]]
    values = dict(zip(_NAMES[kind], fields[1:], strict=True))
    if kind is Put:
        values["admission"] = Admission(values["admission"])
    move: Move = kind(**values)
    return move
