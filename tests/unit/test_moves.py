"""Moves are packed and read back with the same fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgpack
import pytest

from scrapy_dq.frontier.model import PRIORITY_LIMIT, Admission
from scrapy_dq.frontier.moves import (
    _KINDS,
    Ack,
    Again,
    Bury,
    Decline,
    Defer,
    Fail,
    Move,
    Put,
    Release,
    fields_of,
    move_of,
)

ID = b"%012d" % 1
PUT: dict[str, Any] = {
    "entry_id": ID, "admission": Admission.SEED, "token": b"token", "priority": -3, "start": 2,
    "payload": b"payload", "parent": b"%012d" % 2, "partition": b"a.com", "due_at": 1000.5,
    "not_before_s": 1.8e9, "reason": "ä", "known_as": b"k" * 20, "most": 7, "message": b"s-1", "once": True,
    "number": 5, "fresh": False,
}  # fmt: skip
MOVES: list[Move] = [
    Put(**PUT), Ack(ID, True), Release(ID), Bury(ID, "é"), Fail(ID, "why", "http://a.com", True), Defer(ID),
    Again(ID, b"%012d" % 3, b"payload", -3, 2, 1000.5, True), Decline(ID, "é", b"f" * 20),
]  # fmt: skip


@pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)
def test_a_move_comes_back_with_all_its_fields(move: Move) -> None:
    """All fields that are written come back, even the fields that `==` ignores."""
    back = move_of(msgpack.unpackb(msgpack.packb(fields_of(move)), use_list=False))
    assert type(back) is type(move)
    for each in fields(move):
        assert getattr(back, each.name) == getattr(move, each.name)


def test_the_put_of_this_test_has_no_default_value() -> None:
    """Otherwise a field that is never written would get its default, and so would seem to come back."""
    assert {each.name for each in fields(Put)} == {*PUT, "source", "reference"}
    assert not [each.name for each in fields(Put) if PUT.get(each.name, ...) == each.default]


NO_MOVES: list[tuple[Any, ...]] = [
    (), (len(_KINDS), ID), (1,), (1, ID, True, b""), (0, ID), (0, ID, 9, *fields_of(MOVES[0])[3:]),
]  # fmt: skip


@pytest.mark.parametrize("stored", NO_MOVES)
def test_an_invalid_move_is_refused(stored: tuple[Any, ...]) -> None:
    """An unknown kind or admission is refused, and so is a wrong number of fields."""
    with pytest.raises((IndexError, ValueError)):
        move_of(stored)


def test_a_priority_is_written_within_its_limit() -> None:
    """msgpack has no larger integer."""
    move = Put(**{**PUT, "priority": 2**70})
    assert move_of(fields_of(move)) == Put(**{**PUT, "priority": PRIORITY_LIMIT})
    assert move.priority == 2**70
