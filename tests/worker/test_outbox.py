"""The outbox without a worker: prefixes, replay and spilling to disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES, Admission
from scrapy_dq.frontier.moves import Ack, Bury, Fail, Move, Put, Release
from scrapy_dq.frontier.worker import outbox as module
from scrapy_dq.frontier.worker import spill
from scrapy_dq.frontier.worker.outbox import Outbox

PARENT = b"p" * 12


def entry_id(number: int) -> bytes:
    return b"%012d" % number


def put(number: int, *, parent: bytes | None = PARENT, payload: bytes = b"") -> Put:
    return Put(entry_id(number), Admission.ID, entry_id(number), 0, False, payload, parent)


def filled(*moves: Move) -> Outbox:
    outbox = Outbox()
    for move in moves:
        outbox.append(move)
    return outbox


def test_an_exchange_takes_a_prefix_in_the_order_of_the_moves() -> None:
    """Children stay before the ack of their parent, wherever the prefix ends."""
    moves: list[Move] = [put(1), put(2), Ack(PARENT), put(3)]
    outbox = filled(*moves)
    assert outbox.prefix() == moves
    outbox.confirm(moves[:3])
    assert outbox.prefix() == [put(3)]
    assert len(outbox) == 1


def test_a_prefix_has_at_most_max_moves() -> None:
    """Further moves go with the next exchange. The outbox counts as full, so an exchange is due at once."""
    moves = [put(number) for number in range(MAX_MOVES + 5)]
    outbox = filled(*moves[: MAX_MOVES - 1])
    assert not outbox.full
    for move in moves[MAX_MOVES - 1 :]:
        outbox.append(move)
    assert outbox.full
    assert outbox.prefix() == moves[:MAX_MOVES]
    outbox.confirm(moves[:MAX_MOVES])
    assert (outbox.prefix(), outbox.full) == (moves[MAX_MOVES:], False)


def test_a_prefix_has_about_max_bytes_and_at_least_one_move() -> None:
    """The limit is 4 MiB in each direction; a larger put goes alone."""
    third = MAX_EXCHANGE_BYTES // 3 + 1
    large = [put(number, payload=b"x" * third) for number in range(3)]
    outbox = filled(*large)
    assert outbox.full
    assert outbox.prefix() == large[:2]
    outbox.confirm(large[:2])
    assert not outbox.full
    huge = put(9, payload=b"x" * (MAX_EXCHANGE_BYTES + 1))
    assert filled(huge, put(1)).prefix() == [huge]


def test_parentless_puts_are_counted_until_they_are_confirmed() -> None:
    """No other worker knows these puts, so the worker counts as seeding as long as one of them waits."""
    seed, child = put(1, parent=None), put(2)
    outbox = filled(seed, child, Ack(PARENT), put(3, parent=None))
    assert outbox.parentless == 2
    outbox.confirm([seed, child])
    assert outbox.parentless == 1
    outbox.replay([put(4, parent=None)], ())
    assert outbox.parentless == 2


def test_a_replay_puts_the_log_first_and_drops_moves_of_lost_leases() -> None:
    """The log goes first, then the other puts and the moves that settle owned leases, in their order."""
    kept, gone = entry_id(1), entry_id(2)
    outbox = filled(
        put(10), Ack(gone), Ack(kept), put(11, payload=b"xy"), Release(gone), Bury(gone, "why"),
        Bury(kept, "why"), Release(kept),
    )  # fmt: skip
    outbox.replay([put(5), put(6)], {kept})
    expected: list[Move] = [
        put(5), put(6), put(10), Ack(kept), put(11, payload=b"xy"), Bury(kept, "why"), Release(kept),
    ]  # fmt: skip
    assert outbox.prefix() == expected
    outbox.confirm(expected)
    assert (len(outbox), outbox.parentless, outbox._bytes) == (0, 0, 0)


# Spilling to disk


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Outbox]:
    """Yield an outbox that holds 10 moves in memory and spills chunks of 5 to `tmp_path`."""
    monkeypatch.setattr(module, "MEMORY_MOVES", 10)
    monkeypatch.setattr(module, "CHUNK_MOVES", 5)
    outbox = Outbox(str(tmp_path))
    yield outbox
    outbox.clear()


def every_kind(count: int) -> list[Move]:
    """Return moves of all kinds, each with different values in every field."""
    moves: list[Move] = []
    for n in range(count):
        seed = Put(
            entry_id(n), Admission.SEED, b"t%d" % n, n - 3, n % 2 == 0, b"p%d" % n, None, None,
            b"%d.com" % n, 1000.5 + n, 1.8e9 + n, f"ä {n}",
        )  # fmt: skip
        kinds = (seed, put(n), Ack(entry_id(n)), Release(entry_id(n)), Bury(entry_id(n), f"é {n}"))
        moves.append((*kinds, Fail(entry_id(n), f"why {n}", f"http://{n}"))[n % 6])
    return moves


def drain(outbox: Outbox, at_once: int) -> list[Move]:
    taken: list[Move] = []
    while prefix := outbox.prefix()[:at_once]:
        outbox.confirm(prefix)
        taken += prefix
    return taken


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_moves_on_disk_come_back_in_order(tight: Outbox, tmp_path: Path, at_once: int) -> None:
    """This holds for all kinds of moves, even if more come during the reading. Nothing stays on disk."""
    moves = every_kind(100)
    for move in moves[:60]:
        tight.append(move)
    assert list(tmp_path.glob("scrapy-dq-outbox-*/moves/q*"))
    taken = tight.prefix()[:at_once]
    tight.confirm(taken)
    for move in moves[60:]:
        tight.append(move)
    assert len(tight) == 100 - len(taken)
    assert taken + drain(tight, at_once) == moves
    assert (len(tight), tight.puts, tight.parentless, tight._bytes, tight._head_bytes) == (0, 0, 0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_also_changes_moves_on_disk(tight: Outbox) -> None:
    """The log comes first; older moves that settle lost leases are dropped, also on disk.

    Moves made after the replay are not affected.
    """
    kept, gone = entry_id(1), entry_id(2)
    old: list[Move] = [m for n in range(10, 30) for m in (put(n), Ack(gone), Ack(kept))]
    for move in old:
        tight.append(move)
    tight.replay([put(5)], {kept})
    new: list[Move] = [Ack(gone), *(put(n) for n in range(40, 60))]
    for move in new:
        tight.append(move)
    assert drain(tight, 4) == [put(5), *(move for move in old if move != Ack(gone)), *new]
    assert (len(tight), tight._bytes, tight._tail_bytes) == (0, 0, 0)


def test_a_long_outbox_drops_its_source_requests() -> None:
    """Requests are large, so moves beyond one exchange keep only the data to send."""
    outbox = Outbox()
    puts = [put(number) for number in range(MAX_MOVES + 2)]
    for one in puts:
        one.source = object()
        outbox.append(one)
    assert puts[MAX_MOVES - 1].source is not None
    assert puts[MAX_MOVES].source is puts[MAX_MOVES + 1].source is None


def test_a_full_disk_leaves_the_moves_in_memory(
    tight: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The moves keep their order, and one warning names DQ_DATA_DIR. Later moves go to the disk again."""
    moves = every_kind(100)
    for move in moves[:30]:
        tight.append(move)
    monkeypatch.setattr(spill, "FREE_BYTES", 2**60)
    for move in moves[30:60]:
        tight.append(move)
    monkeypatch.setattr(spill, "FREE_BYTES", 0)
    for move in moves[60:]:
        tight.append(move)
    assert len(tight._tail) < 5
    assert drain(tight, 1000) == moves
    assert ["DQ_DATA_DIR" in record.getMessage() for record in caplog.records] == [True]


def test_a_failing_disk_is_not_tried_with_every_move(
    tight: Outbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new attempt follows only after another chunk of moves or bytes; no file is left behind."""
    asked = []

    def full(path: object) -> None:
        asked.append(path)
        raise OSError("no")

    monkeypatch.setattr(spill.shutil, "disk_usage", full)
    monkeypatch.setattr(module, "CHUNK_BYTES", 500)
    for number in range(110):
        tight.append(put(number, payload=b"x" * 100))
    assert len(asked) <= 25
    assert os.listdir(tmp_path) == []


def test_a_missing_data_folder_is_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DQ_DATA_DIR need not exist; other users cannot read the new folder."""
    monkeypatch.setattr(module, "MEMORY_MOVES", 10)
    outbox = Outbox(str(folder := tmp_path / "data" / "dq"))
    for move in every_kind(MAX_MOVES + 50):
        outbox.append(move)
    assert list(folder.glob("scrapy-dq-outbox-*"))
    assert folder.stat().st_mode & 0o777 == 0o700
    outbox.clear()


def test_the_folder_of_a_dead_process_is_removed(tight: Outbox, tmp_path: Path) -> None:
    """A process that dies loses the lock of its folder."""
    dead = tmp_path / "scrapy-dq-outbox-dead"
    (dead / "moves").mkdir(parents=True)
    (dead / "lock").touch()
    living = tmp_path / "scrapy-dq-outbox-living"
    living.mkdir()
    foreign = tmp_path / "something-else"
    foreign.mkdir()
    with (living / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for move in every_kind(30):
            tight.append(move)
        assert not dead.exists()
        assert living.exists()
        assert foreign.exists()
