"""The queue in memory and on disk that an outbox is made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, Ack, Admission, Move, Put, SpillLost
from scrapy_dq.frontier.worker import outbox as module
from scrapy_dq.frontier.worker import spill
from scrapy_dq.frontier.worker.outbox import TieredQueue


def put(number: int, parent: bytes | None = b"p" * 12, payload: bytes = b"") -> Put:
    return Put(b"%012d" % number, Admission.ID, b"t", 0, 0, payload, parent)


def on_disk(folder: Path) -> bool:
    return bool(list(folder.glob("scrapy-dq-outbox-*/moves/q*")))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TieredQueue]:
    """A queue that holds 4 moves in memory, exchanges 3, and spills chunks of 2 to `tmp_path`."""
    monkeypatch.setattr(module, "MEMORY_MOVES", 4)
    monkeypatch.setattr(module, "MAX_MOVES", 3)
    monkeypatch.setattr(module, "CHUNK_MOVES", 2)
    queue = TieredQueue(str(tmp_path))
    yield queue
    queue.clear()


def fill(queue: TieredQueue, moves: list[Move]) -> list[Move]:
    for move in moves:
        queue.append(move)
    return moves


def emptied(queue: TieredQueue) -> list[Move]:
    moves: list[Move] = []
    while prefix := queue.prefix(1):
        queue.remove(prefix)
        moves += prefix
    return moves


def counts(queue: TieredQueue) -> tuple[int, int, int, int]:
    return queue.count, queue.bytes, queue.puts, queue.parentless


def test_moves_go_to_disk_once_memory_is_full(queue: TieredQueue, tmp_path: Path) -> None:
    """The newest wait in memory until they make a chunk; what was read back leaves the disk."""
    moves = fill(queue, [put(n) for n in range(4)])
    assert not on_disk(tmp_path)
    moves += fill(queue, [put(4)])
    assert (on_disk(tmp_path), list(queue.in_memory())) == (False, moves)
    moves += fill(queue, [put(5), put(6)])
    assert (on_disk(tmp_path), list(queue.in_memory())) == (True, [*moves[:4], moves[6]])
    assert emptied(queue) == moves
    assert not on_disk(tmp_path)


def test_what_is_new_does_not_overtake_what_is_on_disk(queue: TieredQueue) -> None:
    """Though there is room in memory again."""
    moves = fill(queue, [put(n) for n in range(9)])
    taken = queue.prefix(4)
    queue.remove(taken)
    moves += fill(queue, [put(9)])
    assert taken + emptied(queue) == moves


def test_a_prefix_removes_nothing_and_ends_by_number_or_bytes(queue: TieredQueue) -> None:
    """One move that is larger than an exchange by itself is a prefix."""
    large = put(0, payload=b"x" * MAX_EXCHANGE_BYTES)
    moves = fill(queue, [large, put(1), put(2), put(3)])
    assert (queue.prefix(0), queue.prefix(3)) == ([], [large])
    queue.remove([large])
    assert (queue.prefix(2), queue.prefix(3), queue.count) == (moves[1:3], moves[1:], 3)


def test_a_rebuild_reaches_all_tiers_and_nothing_later(queue: TieredQueue) -> None:
    """Each rebuild drops of what was there; what it puts first, or comes after it, stays."""
    moves = fill(queue, [put(n) for n in range(9)])
    queue.rebuild([put(20), put(1)], lambda move: move not in (put(1), put(5), put(8)))
    later = fill(queue, [put(5), put(6)])
    queue.rebuild([], lambda move: move != put(6))
    kept = [move for n, move in enumerate(moves) if n not in (1, 5, 6, 8)]
    assert emptied(queue) == [put(20), put(1), *kept, later[0]]
    assert counts(queue) == (0, 0, 0, 0)


def test_all_tiers_are_counted(queue: TieredQueue) -> None:
    """Moves, bytes, puts, and puts without a parent; what a rebuild drops on disk, once it is read."""
    moves = fill(queue, [move for n in range(4) for move in (put(n, None), put(n + 10), Ack(b"a" * 12))])
    everything = sum(move.size for move in moves)
    assert counts(queue) == (12, everything, 8, 4)
    queue.rebuild([], lambda move: isinstance(move, Put))
    emptied(queue)
    assert counts(queue) == (0, 0, 0, 0)


def test_what_the_disk_refuses_stays_in_memory(queue: TieredQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order; it is not lost, and goes to disk once there is room."""
    monkeypatch.setattr(spill, "FREE_BYTES", 2**60)
    moves = fill(queue, [put(n) for n in range(8)])
    assert list(queue.in_memory()) == moves
    monkeypatch.setattr(spill, "FREE_BYTES", 0)
    moves += fill(queue, [put(n) for n in range(8, 12)])
    assert len(list(queue.in_memory())) < 7
    assert emptied(queue) == moves


def test_a_chunk_that_cannot_be_read_is_reported(queue: TieredQueue, tmp_path: Path) -> None:
    """Then what came after it must not be handed in; the queue can be used again once it was cleared."""
    fill(queue, [put(n) for n in range(9)])
    for file in tmp_path.glob("*/moves/q*"):
        file.write_bytes(b"")
    with pytest.raises(SpillLost):
        emptied(queue)
    queue.clear()
    assert (counts(queue), queue.prefix(3), list(tmp_path.iterdir())) == ((0, 0, 0, 0), [], [])
    moves = fill(queue, [put(n) for n in range(9)])
    assert emptied(queue) == moves
