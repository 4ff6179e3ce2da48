"""A worker's journal has only whole records. An export of several journals has each item once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider

from crew.test_feeds import room_for
from scrapy_dq.codec import Codec
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.journal import Journal, exported, not_exported
from scrapy_dq.crew.records import read

RUN = Run("epoch", 3)


@dataclass
class Data:
    """An item of the project."""

    text: str


class Odd(dict[str, str]):
    """An item that the codec refuses."""


def codec() -> Codec:
    return Codec(Spider("any"), spider_modules=[__name__])


def journal_in(folder: Path, worker: int = 1) -> Journal:
    return Journal(folder, RUN, worker, codec())


def items_in(folder: Path) -> list[Any]:
    journals, sizes = sorted(folder.glob("*.journal")), []
    dropped = not_exported(journals, sizes.append)
    assert sum(sizes) == sum(len(record.data) for path in journals for record in read(path))
    return [record.item(codec()) for _, record in exported(journals, dropped)]


def test_items_come_back_as_they_were(tmp_path: Path) -> None:
    """Items that the codec refuses are stored as pickles. Without items, there is no file."""
    journal = journal_in(tmp_path)
    journal.ended([b"entry"], [])
    assert not list(tmp_path.iterdir())
    items = [{"n": 1, "text": "é"}, Data("a"), Odd(a="b"), {"set": {1}, "large": 1 << 70}]
    for item in items:
        journal.add(b"entry", item)
    journal.close()
    again = items_in(tmp_path)
    assert again == items
    assert list(map(type, again)) == list(map(type, items))


def test_an_item_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    class Local:
        pass

    with pytest.raises(CrewError, match=r"class .*Local cannot be stored .*: yield a dict"):
        journal_in(tmp_path).add(b"entry", Local())


def test_an_item_that_finds_no_room_leaves_no_partial_record(tmp_path: Path) -> None:
    """The write raises an error. A part of an item would hide the items that are written after it."""
    journal = journal_in(tmp_path)
    journal.add(b"first", {"text": "first"})
    (path,) = tmp_path.iterdir()
    with room_for(path.stat().st_size + 50), pytest.raises(OSError, match="File too large"):
        journal.add(b"second", {"text": "x" * 100})
    journal.add(b"third", {"text": "third"})
    journal.close()
    assert [item["text"] for item in items_in(tmp_path)] == ["first", "third"]


def test_a_truncated_journal_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    """A kill may cut a journal off, and a power loss may leave zeros. All records before that are read."""
    journal = journal_in(tmp_path)
    sizes = []
    for n in range(3):
        journal.add(b"%d" % n, {"n": n + 1})
        (path,) = tmp_path.iterdir()
        sizes.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut] + b"\0" * 20)
        with_zeros = cut >= 20 and items_in(tmp_path)
        path.write_bytes(whole[:cut])
        items = items_in(tmp_path)
        assert [item["n"] for item in items] == list(range(1, 1 + sum(size <= cut for size in sizes)))
        assert with_zeros in (False, items)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(b"scrapy_dq journal 2\n...")
    with pytest.raises(CrewError, match=r"a\.journal is no journal that this version"):
        list(read(tmp_path / "a.journal"))


def test_a_request_that_was_not_acked_has_its_items_once(tmp_path: Path) -> None:
    """The items come from the worker that acked the request, or else from the attempt with the most items."""
    first, second = journal_in(tmp_path, 1), journal_in(tmp_path, 2)
    first.add(b"", {"of": "start()"})
    first.add(b"acked elsewhere", {"n": 0})
    first.add(b"unended", {"n": 1})
    first.add(b"failed", {"n": 2})
    first.ended([], [b"failed"])
    first.add(b"acked", {"n": 3})
    first.add(b"failed", {"n": 2, "again": 1})
    first.ended([b"acked", b"failed"], [])
    second.add(b"unended", {"n": 1})
    second.add(b"acked elsewhere", {"n": 0, "again": 1})
    second.add(b"unended", {"n": 1, "more": 1})
    second.ended([b"acked elsewhere"], [])
    first.close()
    second.close()
    assert items_in(tmp_path) == [
        {"of": "start()"}, {"n": 3}, {"n": 2, "again": 1},
        {"n": 1}, {"n": 0, "again": 1}, {"n": 1, "more": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_kills_lose_and_double_no_acked_item(tmp_path: Path, seed: int) -> None:
    """Workers take pages, write one to three items for each page, ack the page, and die at any point."""
    chance = random.Random(seed)
    pages = {b"page%d" % n: chance.randint(1, 3) for n in range(60)}
    waiting, acked, process = list(pages), set(), 0
    while waiting:
        process += 1
        journal = journal_in(tmp_path, process % 1000)
        for _ in range(chance.randint(1, 12)):
            if not waiting:
                break
            page = waiting.pop(0)
            written = chance.randint(0, pages[page]) if chance.random() < 0.2 else pages[page]
            for n in range(written):
                journal.add(page, {"page": page, "n": n})
            if written < pages[page] or chance.random() < 0.1:
                waiting.append(page)  # the worker is killed here, or the page fails
                if chance.random() < 0.5:
                    break
                journal.ended([], [page])
                continue
            acked.add(page)
            if chance.random() < 0.1:
                break  # the worker is killed between the ack and the record about the ack
            journal.ended([page], [])
        journal.close()
    found = Counter((item["page"], item["n"]) for item in items_in(tmp_path))
    assert acked == set(pages)
    assert found == {(page, n): 1 for page, count in pages.items() for n in range(count)}
